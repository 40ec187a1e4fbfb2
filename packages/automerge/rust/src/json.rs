//! Strict JSON in, canonical JSON out, and the value between.
//!
//! Ours rather than a library's because a number must come back as it was sent or be refused:
//! 64-bit integers of both signs stay integers, an integer beyond them is no float, and floats
//! round-trip.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::fault::Fault;

/// Arrays and objects inside one another; the request line has the same bound.
pub const MAX_DEPTH: usize = 127;
/// Bytes of one JSON text: eight times the longest request line, for values that merging made
/// longer.
pub const MAX_JSON_BYTES: usize = 8 << 20;

/// A JSON value. Equality is that of the protocol: the integer 1 is not the float 1.0, 0.0 is -0.0.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Int(i64),
    /// Above the signed range only.
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Map(BTreeMap<String, Json>),
}

/// Parse `text` whole.
pub fn parse(text: &str) -> Result<Json, Fault> {
    if text.len() > MAX_JSON_BYTES {
        return Err(Fault::limit("json_bytes", MAX_JSON_BYTES as u64));
    }
    let mut parser = Parser { text, at: 0 };
    parser.skip_blanks();
    let value = parser.value(0)?;
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.fault("text after the value"));
    }
    Ok(value)
}

/// Canonical text: sorted members, no blanks, non-ASCII as it is.
///
/// Letter for letter what the engine stores for the same value.
pub fn write(value: &Json) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn fault(&self, problem: &str) -> Fault {
        Fault::Json {
            version: None,
            offset: self.at,
            problem: problem.to_owned(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json, Fault> {
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(_) => Err(self.fault("not the start of a value")),
            None => Err(self.fault("the text ends where a value should be")),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, Fault> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.fault("not the start of a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn enter(&mut self, depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::limit("depth", MAX_DEPTH as u64));
        }
        self.at += 1;
        self.skip_blanks();
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<Json, Fault> {
        self.enter(depth)?;
        let mut members = BTreeMap::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Map(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.fault("a member name is missing"));
            }
            let name = self.string()?;
            self.skip_blanks();
            if self.peek() != Some(b':') {
                return Err(self.fault("a colon is missing"));
            }
            self.at += 1;
            self.skip_blanks();
            let value = self.value(depth)?;
            // The last of several members of one name stands, as everywhere in the protocol.
            members.insert(name, value);
            if !self.more(b'}')? {
                return Ok(Json::Map(members));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, Fault> {
        self.enter(depth)?;
        let mut elements = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::List(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            if !self.more(b']')? {
                return Ok(Json::List(elements));
            }
        }
    }

    fn more(&mut self, end: u8) -> Result<bool, Fault> {
        self.skip_blanks();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.skip_blanks();
                Ok(true)
            }
            Some(byte) if byte == end => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.fault("a comma or a closing bracket is missing")),
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        self.at += 1;
        let mut out = String::new();
        let mut run = self.at;
        loop {
            match self.peek() {
                None => return Err(self.fault("the text ends inside a string")),
                Some(b'"') => {
                    out.push_str(&self.text[run..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[run..self.at]);
                    self.at += 1;
                    out.push(self.escape()?);
                    run = self.at;
                }
                Some(0..=0x1f) => return Err(self.fault("a control character in a string")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let byte = self.peek();
        let plain = match byte {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.fault("an unknown escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, Fault> {
        let first = self.hex4()?;
        let code = if (0xd800..0xdc00).contains(&first) {
            if !self.text[self.at..].starts_with("\\u") {
                return Err(self.fault("a lone surrogate"));
            }
            self.at += 1;
            let second = self.hex4()?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.fault("a lone surrogate"));
            }
            0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| self.fault("a lone surrogate"))
    }

    /// Reads `u` and four hexadecimal digits.
    fn hex4(&mut self) -> Result<u32, Fault> {
        let digits = self
            .text
            .as_bytes()
            .get(self.at + 1..self.at + 5)
            .ok_or_else(|| self.fault("an unfinished escape"))?;
        let mut code = 0;
        for &digit in digits {
            let value = char::from(digit)
                .to_digit(16)
                .ok_or_else(|| self.fault("an unfinished escape"))?;
            code = code * 16 + value;
        }
        self.at += 5;
        Ok(code)
    }

    fn number(&mut self) -> Result<Json, Fault> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.fault("a digit is missing")),
        }
        let mut is_integer = true;
        if self.peek() == Some(b'.') {
            is_integer = false;
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            is_integer = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        let spelled = &self.text[start..self.at];
        let value = if is_integer {
            integer(spelled)
        } else {
            spelled
                .parse()
                .ok()
                .filter(|float: &f64| float.is_finite())
                .map(Json::Float)
        };
        value.ok_or_else(|| {
            self.at = start;
            self.fault("a number outside the ranges of 64-bit integers and floats")
        })
    }

    fn digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        self.digits();
        if self.at == start {
            return Err(self.fault("a digit is missing"));
        }
        Ok(())
    }
}

fn integer(spelled: &str) -> Option<Json> {
    match spelled.parse() {
        Ok(signed) => Some(Json::Int(signed)),
        Err(_) => spelled.parse().ok().map(Json::Uint),
    }
}

fn write_value(value: &Json, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Int(number) => _ = write!(out, "{number}"),
        Json::Uint(number) => _ = write!(out, "{number}"),
        Json::Float(number) => write_float(*number, out),
        Json::Text(text) => write_string(text, out),
        Json::List(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(element, out);
            }
            out.push(']');
        }
        Json::Map(members) => {
            out.push('{');
            for (index, (name, member)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(name, out);
                out.push(':');
                write_value(member, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut run = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[run..at]);
        run = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => _ = write!(out, "\\u{control:04x}"),
        }
    }
    out.push_str(&text[run..]);
    out.push('"');
}

/// The shortest digits that read back as `number`, with a point or an exponent.
fn write_float(number: f64, out: &mut String) {
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -5..0 => _ = write!(out, "{number}"),
        0..16 => _ = write!(out, "{number:?}"),
        exponent => _ = write!(out, "{mantissa}e{exponent:+}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        write(&parse(text).expect(text))
    }

    #[test]
    fn numbers_come_back_as_they_were_sent() {
        for text in [
            "0",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "18446744073709551615",
            "1.0",
            "-0.0",
            "0.1",
            "1e+16",
            "0.00001",
            "1.5e-6",
            "1e-7",
            "0.000012345",
            "0.0001",
            "1000000000000000.0",
            "1.2345678901234568e+17",
            "5e-324",
            "1.7976931348623157e+308",
        ] {
            assert_eq!(round(text), text);
        }
        assert_eq!(round("1E2"), "100.0");
        assert_eq!(round("-0"), "0");
    }

    #[test]
    fn numbers_that_cannot_be_kept_are_refused() {
        for text in [
            "18446744073709551616",
            "-9223372036854775809",
            "1e999",
            "01",
            "+1",
            "1.",
            ".5",
            "1e",
            "-",
            "NaN",
            "Infinity",
        ] {
            assert!(matches!(parse(text), Err(Fault::Json { .. })), "{text}");
        }
    }

    #[test]
    fn strings_are_strict() {
        assert_eq!(
            round(r#""\u00e9\ud83d\ude00\/\b\f\n\r\t\"\\\u0001""#),
            "\"é😀/\\b\\f\\n\\r\\t\\\"\\\\\\u0001\""
        );
        for text in [
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\ud800""#,
            r#""\ud800x""#,
            r#""\x""#,
            r#""\u12"#,
            "\"\n\"",
            "\"",
            "\u{feff}1",
        ] {
            assert!(matches!(parse(text), Err(Fault::Json { .. })), "{text}");
        }
    }

    #[test]
    fn structure_is_strict_and_sorted() {
        assert_eq!(
            round(" { \"b\" : [ 1 , null ] , \"a\" : { } , \"b\" : [ ] } "),
            r#"{"a":{},"b":[]}"#
        );
        for text in [
            "",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{a:1}",
            "{\"a\":1,}",
            "[",
            "{",
            "1 1",
            "tru",
            "nul",
        ] {
            assert!(matches!(parse(text), Err(Fault::Json { .. })), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(
            parse(&nested(MAX_DEPTH + 1)),
            Err(Fault::limit("depth", 127))
        );
        assert_eq!(parse(&"[".repeat(1 << 20)), Err(Fault::limit("depth", 127)));
    }
}
