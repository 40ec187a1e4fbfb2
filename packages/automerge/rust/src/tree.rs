//! JSON values in Automerge documents: creating, reading, and the change from one value to another.
//!
//! A document is a root map with the one member `value`. Text is an Automerge text, a list a list,
//! a map a map, everything else a scalar. What the elements of a text stand for is left to
//! [`Texts`].

use std::collections::{BTreeMap, HashMap};

use automerge::transaction::{Transactable, Transaction};
use automerge::{
    Automerge, ChangeHash, ObjId, ObjType, Prop, ROOT, ReadDoc, ScalarValue, ScalarValueRef,
    TextEncoding, ValueRef, hydrate,
};

use crate::fault::Fault;
use crate::json::{Json, MAX_DEPTH};

/// The member of the root map that holds the value.
const VALUE: &str = "value";

pub const ENCODING: TextEncoding = TextEncoding::UnicodeCodePoint;

/// One step from a value to a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step<'a> {
    Member(&'a str),
    Element(usize),
}

/// `delete` elements at `at` give way to those of `insert`.
#[derive(Debug)]
pub struct Splice {
    pub at: usize,
    pub delete: usize,
    pub insert: String,
}

/// How a text's elements, one character each, stand for its content.
pub trait Texts<'a> {
    /// Elements of a new text.
    fn create(&mut self, path: &[Step<'a>], text: &'a str) -> Result<String, Fault>;

    /// The splices that turn the text of `elements` into `text`: ascending, positions before any of
    /// them.
    fn edit(
        &mut self,
        path: &[Step<'a>],
        elements: &str,
        text: &'a str,
    ) -> Result<Vec<Splice>, Fault>;

    /// The text that `elements` stand for.
    fn read(&self, elements: String) -> Result<String, Fault>;

    /// Take note of one more operation on what a document held before the change.
    fn count_operation(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Elements are the code points of the text: what a document to be kept holds.
#[derive(Debug)]
pub struct PlainTexts {
    budget: crate::text::Budget,
}

impl Default for PlainTexts {
    fn default() -> Self {
        Self {
            budget: crate::text::Budget::new(crate::text::DEFAULT_WORK),
        }
    }
}

impl<'a> Texts<'a> for PlainTexts {
    fn create(&mut self, _path: &[Step<'a>], text: &'a str) -> Result<String, Fault> {
        Ok(text.to_owned())
    }

    fn edit(
        &mut self,
        _path: &[Step<'a>],
        elements: &str,
        text: &'a str,
    ) -> Result<Vec<Splice>, Fault> {
        let mut splices = Vec::new();
        let (mut byte, mut at) = (0, 0);
        for hunk in crate::text::script(elements, text, &mut self.budget) {
            at += elements[byte..hunk.old.start].chars().count();
            let delete = elements[hunk.old.clone()].chars().count();
            splices.push(Splice {
                at,
                delete,
                insert: text[hunk.new].to_owned(),
            });
            at += delete;
            byte = hunk.old.end;
        }
        Ok(splices)
    }

    fn read(&self, elements: String) -> Result<String, Fault> {
        Ok(elements)
    }
}

/// Put `value` into the empty document of `transaction`.
pub fn create<'a>(
    transaction: &mut Transaction<'_>,
    texts: &mut impl Texts<'a>,
    value: &'a Json,
) -> Result<(), Fault> {
    let mut editor = Editor::new(transaction, texts, true);
    editor.put(&ROOT, Prop::from(VALUE), value)?;
    editor.finish()
}

/// Edit the document of `transaction`, which reads `old`, so that it reads `new`.
///
/// With `is_thorough` also parts that are equal are visited, so that conflicts of scalars are
/// settled.
///
/// Of operations at one place the later one wins or comes first, so the operations that can meet
/// others there are made first: how many they are, and in which order, depends on the two values
/// alone and not on how texts are cut into elements. What stands inside new objects, the further
/// elements of an insertion and deletions follow.
pub fn replace<'a>(
    transaction: &mut Transaction<'_>,
    texts: &mut impl Texts<'a>,
    old: &Json,
    new: &'a Json,
    is_thorough: bool,
) -> Result<(), Fault> {
    let mut editor = Editor::new(transaction, texts, is_thorough);
    editor.replace(&ROOT, Prop::from(VALUE), old, new)?;
    editor.finish()
}

struct Editor<'a, 't, 'd, T> {
    transaction: &'t mut Transaction<'d>,
    texts: &'t mut T,
    path: Vec<Step<'a>>,
    is_thorough: bool,
    /// New objects that are still empty, and what they will hold.
    fillings: Vec<(ObjId, hydrate::Value)>,
    /// Texts whose insertions have only begun.
    beginnings: Vec<(ObjId, Vec<Splice>)>,
}

impl<'a, 't, 'd, T: Texts<'a>> Editor<'a, 't, 'd, T> {
    fn new(transaction: &'t mut Transaction<'d>, texts: &'t mut T, is_thorough: bool) -> Self {
        Self {
            transaction,
            texts,
            path: Vec::new(),
            is_thorough,
            fillings: Vec::new(),
            beginnings: Vec::new(),
        }
    }

    fn replace(
        &mut self,
        parent: &ObjId,
        at: Prop,
        old: &Json,
        new: &'a Json,
    ) -> Result<(), Fault> {
        if !self.is_thorough && old == new {
            return Ok(());
        }
        match (old, new) {
            (Json::Text(_), Json::Text(text)) => {
                let object = self.object(parent, at)?;
                self.replace_text(object, text)
            }
            (Json::List(old), Json::List(new)) => {
                let object = self.object(parent, at)?;
                self.replace_list(&object, old, new)
            }
            (Json::Map(old), Json::Map(new)) => {
                let object = self.object(parent, at)?;
                self.replace_map(&object, old, new)
            }
            _ => self.put(parent, at, new),
        }
    }

    fn object(&self, parent: &ObjId, at: Prop) -> Result<ObjId, Fault> {
        match self.transaction.get(parent, at)? {
            Some((_, object)) => Ok(object),
            None => Err(missing()),
        }
    }

    fn replace_text(&mut self, object: ObjId, text: &'a str) -> Result<(), Fault> {
        self.texts.count_operation()?;
        let elements = self.transaction.text(&object)?;
        let splices = self.texts.edit(&self.path, &elements, text)?;
        let mut begun = 0;
        for splice in &splices {
            self.texts.count_operation()?;
            if let Some(first) = splice.insert.chars().next() {
                let first = first.encode_utf8(&mut [0; 4]).to_owned();
                self.transaction
                    .splice_text(&object, splice.at + begun, 0, &first)?;
                begun += 1;
            }
        }
        self.beginnings.push((object, splices));
        Ok(())
    }

    fn replace_list(&mut self, object: &ObjId, old: &[Json], new: &'a [Json]) -> Result<(), Fault> {
        for (index, (before, after)) in old.iter().zip(new).enumerate() {
            self.path.push(Step::Element(index));
            self.replace(object, Prop::from(index), before, after)?;
            self.path.pop();
        }
        let common = old.len().min(new.len());
        for _ in common..old.len() {
            self.texts.count_operation()?;
            self.transaction.delete(object, common)?;
        }
        for (index, element) in new.iter().enumerate().skip(common) {
            self.texts.count_operation()?;
            self.path.push(Step::Element(index));
            match self.created(element)? {
                hydrate::Value::Scalar(scalar) => {
                    self.transaction.insert(object, index, scalar)?;
                }
                value => {
                    let kind = kind(&value);
                    let element = self.transaction.insert_object(object, index, kind)?;
                    self.fillings.push((element, value));
                }
            }
            self.path.pop();
        }
        Ok(())
    }

    fn replace_map(
        &mut self,
        object: &ObjId,
        old: &BTreeMap<String, Json>,
        new: &'a BTreeMap<String, Json>,
    ) -> Result<(), Fault> {
        for name in old.keys().filter(|name| !new.contains_key(*name)) {
            self.texts.count_operation()?;
            self.transaction.delete(object, name.as_str())?;
        }
        for (name, after) in new {
            self.path.push(Step::Member(name));
            let at = Prop::from(name.as_str());
            match old.get(name) {
                Some(before) => self.replace(object, at, before, after)?,
                None => self.put(object, at, after)?,
            }
            self.path.pop();
        }
        Ok(())
    }

    /// A new scalar or a new object; an equal scalar that nothing conflicts with stays as it is.
    fn put(&mut self, parent: &ObjId, at: Prop, value: &'a Json) -> Result<(), Fault> {
        self.texts.count_operation()?;
        match self.created(value)? {
            hydrate::Value::Scalar(scalar) => self.transaction.put(parent, at, scalar)?,
            value => {
                let object = self.transaction.put_object(parent, at, kind(&value))?;
                self.fillings.push((object, value));
            }
        }
        Ok(())
    }

    fn created(&mut self, value: &'a Json) -> Result<hydrate::Value, Fault> {
        Ok(match value {
            Json::Null => ScalarValue::Null.into(),
            Json::Bool(value) => ScalarValue::Boolean(*value).into(),
            Json::Int(value) => ScalarValue::Int(*value).into(),
            Json::Uint(value) => ScalarValue::Uint(*value).into(),
            Json::Float(value) => ScalarValue::F64(*value).into(),
            Json::Text(text) => {
                hydrate::Value::text(ENCODING, &self.texts.create(&self.path, text)?)
            }
            Json::List(list) => {
                let mut created = Vec::with_capacity(list.len());
                for (index, element) in list.iter().enumerate() {
                    self.path.push(Step::Element(index));
                    created.push(self.created(element)?);
                    self.path.pop();
                }
                hydrate::List::from(created).into()
            }
            Json::Map(members) => {
                let mut created = HashMap::with_capacity(members.len());
                for (name, member) in members {
                    self.path.push(Step::Member(name));
                    created.insert(name.clone(), self.created(member)?);
                    self.path.pop();
                }
                hydrate::Map::from(created).into()
            }
        })
    }

    fn finish(mut self) -> Result<(), Fault> {
        for (object, value) in std::mem::take(&mut self.fillings) {
            self.fill(&object, value)?;
        }
        for (object, splices) in std::mem::take(&mut self.beginnings) {
            self.complete(&object, &splices)?;
        }
        Ok(())
    }

    fn fill(&mut self, object: &ObjId, value: hydrate::Value) -> Result<(), Fault> {
        match value {
            hydrate::Value::Scalar(_) => {}
            hydrate::Value::Text(text) => {
                self.transaction
                    .splice_text(object, 0, 0, &text.to_string())?;
            }
            hydrate::Value::List(list) => {
                let elements = list.iter().map(|element| element.value.clone());
                self.transaction.splice(object, 0, 0, elements)?;
            }
            hydrate::Value::Map(map) => {
                let members: BTreeMap<_, _> = map.iter().collect();
                for (name, member) in members {
                    match &member.value {
                        hydrate::Value::Scalar(scalar) => {
                            self.transaction
                                .put(object, name.as_str(), scalar.clone())?;
                        }
                        value => {
                            let at = Prop::from(name.as_str());
                            self.transaction
                                .batch_create_object(object, at, value, false)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Insert what follows each first element, and delete.
    fn complete(&mut self, object: &ObjId, splices: &[Splice]) -> Result<(), Fault> {
        let mut moved = 0_isize;
        for splice in splices {
            let mut rest = splice.insert.chars();
            let begun = usize::from(rest.next().is_some());
            let rest = rest.as_str();
            let at = splice.at.saturating_add_signed(moved) + begun;
            let delete = splice.delete as isize;
            if delete > 0 || !rest.is_empty() {
                self.transaction.splice_text(object, at, delete, rest)?;
            }
            moved += splice.insert.chars().count() as isize - delete;
        }
        Ok(())
    }
}

fn kind(value: &hydrate::Value) -> ObjType {
    match value {
        hydrate::Value::Map(_) => ObjType::Map,
        hydrate::Value::List(_) => ObjType::List,
        _ => ObjType::Text,
    }
}

/// The value of `document`, now or as it was at `heads`.
///
/// Anything that no JSON value becomes in a document of ours is corruption.
pub fn read<'a>(
    document: &Automerge,
    heads: Option<&[ChangeHash]>,
    texts: &impl Texts<'a>,
) -> Result<Json, Fault> {
    let reader = Reader {
        document,
        heads,
        texts,
    };
    let mut root = reader.members(&ROOT, 0)?;
    match (root.remove(VALUE), root.is_empty()) {
        (Some(value), true) => Ok(value),
        (None, _) => Err(missing()),
        _ => Err(Fault::corrupt(
            "the root map has other members than the value",
        )),
    }
}

struct Reader<'d, T> {
    document: &'d Automerge,
    heads: Option<&'d [ChangeHash]>,
    texts: &'d T,
}

impl<'a, T: Texts<'a>> Reader<'_, T> {
    fn members(&self, object: &ObjId, depth: usize) -> Result<BTreeMap<String, Json>, Fault> {
        let range = match self.heads {
            None => self.document.map_range(object, ..),
            Some(heads) => self.document.map_range_at(object, .., heads),
        };
        range
            .map(|item| {
                let value = self.value(&item.value, || item.id(), depth)?;
                Ok((item.key.into_owned(), value))
            })
            .collect()
    }

    fn elements(&self, object: &ObjId, depth: usize) -> Result<Vec<Json>, Fault> {
        let range = match self.heads {
            None => self.document.list_range(object, ..),
            Some(heads) => self.document.list_range_at(object, .., heads),
        };
        range
            .map(|item| self.value(&item.value, || item.id(), depth))
            .collect()
    }

    fn value(
        &self,
        value: &ValueRef<'_>,
        object: impl Fn() -> ObjId,
        depth: usize,
    ) -> Result<Json, Fault> {
        let kind = match value {
            ValueRef::Scalar(scalar) => return scalar_value(scalar),
            ValueRef::Object(kind) => *kind,
        };
        if kind == ObjType::Text {
            let elements = match self.heads {
                None => self.document.text(object())?,
                Some(heads) => self.document.text_at(object(), heads)?,
            };
            return Ok(Json::Text(self.texts.read(elements)?));
        }
        if depth == MAX_DEPTH {
            return Err(Fault::limit("depth", MAX_DEPTH as u64));
        }
        match kind {
            ObjType::Map => Ok(Json::Map(self.members(&object(), depth + 1)?)),
            ObjType::List => Ok(Json::List(self.elements(&object(), depth + 1)?)),
            _ => Err(Fault::corrupt("an object of a kind that JSON has not")),
        }
    }
}

fn scalar_value(scalar: &ScalarValueRef<'_>) -> Result<Json, Fault> {
    Ok(match scalar {
        ScalarValueRef::Null => Json::Null,
        ScalarValueRef::Boolean(value) => Json::Bool(*value),
        ScalarValueRef::Int(value) => Json::Int(*value),
        ScalarValueRef::Uint(value) => match i64::try_from(*value) {
            Ok(signed) => Json::Int(signed),
            Err(_) => Json::Uint(*value),
        },
        ScalarValueRef::F64(value) if value.is_finite() => Json::Float(*value),
        ScalarValueRef::Str(text) => Json::Text(text.to_string()),
        _ => return Err(Fault::corrupt("a scalar of a kind that JSON has not")),
    })
}

fn missing() -> Fault {
    Fault::corrupt("the document holds no value")
}
