//! What a saved document would unpack to, read from its outside before any of it is unpacked for
//! use.
//!
//! Columns of a document are deflated, and runs of equal entries are stored as one: a few bytes can
//! stand for any amount of memory. Only what `save` writes is let in: one document chunk, whole,
//! nothing after it.

use std::io::Read as _;

use crate::fault::Fault;

/// Entries of one column: no document holds more operations.
pub const MAX_OPERATIONS: u64 = 1 << 24;

const MAGIC: [u8; 4] = [0x85, 0x6f, 0x4a, 0x83];
const DOCUMENT: u8 = 0;
const HASH_BYTES: u64 = 32;

/// Refuse `data` that is no single document chunk, or unpacks to more than `max_bytes` or too many
/// entries.
pub fn check(data: &[u8], max_bytes: usize) -> Result<(), Fault> {
    let mut input = Input { data };
    if input.take(4)? != MAGIC {
        return Err(Fault::corrupt("it does not begin as a document does"));
    }
    input.take(4)?;
    if input.take(1)? != [DOCUMENT] {
        return Err(Fault::corrupt("it is another kind of chunk"));
    }
    if input.number()? != input.data.len() as u64 {
        return Err(Fault::corrupt("bytes are missing, or follow the document"));
    }
    for _ in 0..input.number()? {
        let length = input.number()?;
        input.take(length)?;
    }
    let heads = input.number()?;
    input.take(heads.saturating_mul(HASH_BYTES))?;
    let columns = [input.columns()?, input.columns()?].concat();
    let mut room = max_bytes as u64;
    for column in columns {
        let stored = input.take(column.bytes)?;
        let unpacked = column
            .unpack(stored, room)?
            .ok_or_else(|| Fault::limit("document_bytes", max_bytes as u64))?;
        room -= unpacked.len() as u64;
        if entries(column.kind(), &unpacked)? > MAX_OPERATIONS {
            return Err(Fault::limit("operations", MAX_OPERATIONS));
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Column {
    specification: u64,
    bytes: u64,
}

impl Column {
    fn kind(self) -> u64 {
        self.specification & 0b111
    }

    fn is_deflated(self) -> bool {
        self.specification & 0b1000 != 0
    }

    /// What is stored of the column, or none if it needs more than `room`.
    fn unpack(self, stored: &[u8], room: u64) -> Result<Option<Vec<u8>>, Fault> {
        let mut unpacked = Vec::new();
        if self.is_deflated() {
            flate2::bufread::DeflateDecoder::new(stored)
                .take(room + 1)
                .read_to_end(&mut unpacked)
                .map_err(|_| Fault::corrupt("a column does not unpack"))?;
        } else {
            unpacked.extend_from_slice(stored);
        }
        Ok((unpacked.len() as u64 <= room).then_some(unpacked))
    }
}

const BOOLEAN: u64 = 4;
const STRING: u64 = 5;
const RAW: u64 = 7;

/// How many entries a column holds, up to one past the bound.
fn entries(kind: u64, unpacked: &[u8]) -> Result<u64, Fault> {
    let mut input = Input { data: unpacked };
    let mut count = 0_u64;
    while kind != RAW && !input.data.is_empty() && count <= MAX_OPERATIONS {
        count = count.saturating_add(match kind {
            BOOLEAN => input.number()?,
            _ => input.run(kind == STRING)?,
        });
    }
    Ok(count)
}

struct Input<'a> {
    data: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, bytes: u64) -> Result<&'a [u8], Fault> {
        let split = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.data.split_at_checked(bytes));
        let (taken, rest) = split.ok_or_else(truncated)?;
        self.data = rest;
        Ok(taken)
    }

    /// The bits of a LEB128 number, and how many of them it spells.
    fn bits(&mut self) -> Result<(u64, u32), Fault> {
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = self.take(1)?[0];
            if shift > 63 {
                return Err(Fault::corrupt("a number is too long"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Ok((value, shift));
            }
        }
    }

    fn number(&mut self) -> Result<u64, Fault> {
        self.bits().map(|(value, _)| value)
    }

    fn signed(&mut self) -> Result<i64, Fault> {
        let (value, shift) = self.bits()?;
        let is_negative = shift < 64 && value >> (shift - 1) & 1 == 1;
        let extended = if is_negative {
            value | u64::MAX << shift
        } else {
            value
        };
        Ok(extended as i64)
    }

    fn columns(&mut self) -> Result<Vec<Column>, Fault> {
        let mut columns = Vec::new();
        for _ in 0..self.number()? {
            columns.push(Column {
                specification: self.number()?,
                bytes: self.number()?,
            });
        }
        Ok(columns)
    }

    /// The length of one run: of equal entries, of entries one by one, or of nothing.
    fn run(&mut self, are_strings: bool) -> Result<u64, Fault> {
        match self.signed()? {
            0 => self.number(),
            repeated @ 1.. => {
                self.skip_entry(are_strings)?;
                Ok(repeated.unsigned_abs())
            }
            literal => {
                for _ in 0..literal.unsigned_abs() {
                    self.skip_entry(are_strings)?;
                }
                Ok(literal.unsigned_abs())
            }
        }
    }

    fn skip_entry(&mut self, is_string: bool) -> Result<(), Fault> {
        let (number, _) = self.bits()?;
        if is_string {
            self.take(number)?;
        }
        Ok(())
    }
}

fn truncated() -> Fault {
    Fault::corrupt("it ends too early")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    fn saved() -> Vec<u8> {
        let numbers = "null,".repeat(5_000) + "1,2,3,true,false,\"é\"";
        let json = format!(
            "{{\"list\":[{numbers}],\"text\":\"{}\"}}",
            "words ".repeat(200)
        );
        let mut document = document::from_json(&json, b"first").expect("a document");
        document::replace(
            &mut document,
            "{\"list\":[1.5],\"text\":\"other words\"}",
            b"second",
        )
        .expect("a change");
        document.save()
    }

    #[test]
    fn what_was_saved_is_let_in() {
        assert_eq!(check(&saved(), 1 << 20), Ok(()));
    }

    #[test]
    fn unpacked_bytes_are_bounded() {
        let saved = saved();
        assert!(matches!(
            check(&saved, saved.len()),
            Err(Fault::Limit {
                limit: "document_bytes",
                ..
            })
        ));
    }

    #[test]
    fn every_truncation_is_found() {
        let saved = saved();
        for length in 0..saved.len() {
            assert!(matches!(
                check(&saved[..length], 1 << 20),
                Err(Fault::Corrupt { .. })
            ));
        }
        assert!(check(&[&saved[..], b"x"].concat(), 1 << 20).is_err());
    }

    #[test]
    fn entries_are_counted_without_being_made() {
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x01];
        assert!(entries(1, &huge).expect("a run") > MAX_OPERATIONS);
        assert!(entries(4, &huge[..8]).expect("a run") > MAX_OPERATIONS);
        assert_eq!(entries(2, &[0x7d, 1, 2, 3, 2, 9, 0, 4]), Ok(3 + 2 + 4));
        assert_eq!(entries(5, &[0x7e, 1, b'a', 0, 2, 1, b'b']), Ok(2 + 2));
        assert!(entries(2, &[0x7d, 1, 2]).is_err());
    }
}
