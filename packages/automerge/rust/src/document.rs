//! Documents to be kept: elements of their texts are code points, their history is complete.

use automerge::{
    ActorId, Automerge, ChangeHash, LoadOptions, OnPartialLoad, ReadDoc, StringMigration,
    VerificationMode,
};

use crate::container;
use crate::fault::Fault;
use crate::json;
use crate::tree::{self, PlainTexts};

/// Bytes of one actor id.
pub const MAX_ACTOR_BYTES: usize = 256;
/// Bytes of a JSON text to make a document of. Each code point of a string becomes an operation,
/// which takes about 300 bytes while it is made.
pub const MAX_VALUE_BYTES: usize = 4 << 20;

/// A document of one change that reads `text`.
pub fn from_json(text: &str, actor: &[u8]) -> Result<Automerge, Fault> {
    let value = parse(text)?;
    let mut document = Automerge::new_with_encoding(tree::ENCODING);
    document.set_actor(actor_id(actor)?);
    let mut transaction = document.transaction();
    tree::create(&mut transaction, &mut PlainTexts::default(), &value)?;
    transaction.commit();
    Ok(document)
}

/// One change of `document` towards `text`; its hash, or none when nothing was to be edited.
pub fn replace(
    document: &mut Automerge,
    text: &str,
    actor: &[u8],
) -> Result<Option<String>, Fault> {
    let new = parse(text)?;
    let old = read(document)?;
    document.set_actor(actor_id(actor)?);
    let mut transaction = document.transaction();
    tree::replace(
        &mut transaction,
        &mut PlainTexts::default(),
        &old,
        &new,
        true,
    )?;
    let (hash, _) = transaction.commit();
    Ok(hash.map(|hash| hash.to_string()))
}

/// Canonical JSON of `document` now.
pub fn to_json(document: &Automerge) -> Result<String, Fault> {
    read(document).map(|value| json::write(&value))
}

/// Canonical JSON of `document` as it was at `heads`.
pub fn to_json_at(document: &Automerge, heads: &[String]) -> Result<String, Fault> {
    let mut hashes = Vec::with_capacity(heads.len());
    for head in heads {
        let hash = head.parse::<ChangeHash>().ok();
        match hash.filter(|hash| document.get_change_meta_by_hash(hash).is_some()) {
            Some(hash) => hashes.push(hash),
            None => return Err(Fault::UnknownHead { head: head.clone() }),
        }
    }
    if hashes.is_empty() {
        return Err(Fault::Argument {
            problem: "at least one head must be named".to_owned(),
        });
    }
    tree::read(document, Some(&hashes), &PlainTexts::default()).map(|value| json::write(&value))
}

/// Hashes of the changes that no other change follows, ascending.
pub fn heads(document: &Automerge) -> Vec<String> {
    let mut heads: Vec<_> = document
        .get_heads()
        .iter()
        .map(ChangeHash::to_string)
        .collect();
    heads.sort_unstable();
    heads
}

/// The document that `data` holds, whole and intact.
pub fn load(data: &[u8], max_bytes: usize) -> Result<Automerge, Fault> {
    if data.len() > max_bytes {
        return Err(Fault::limit("document_bytes", max_bytes as u64));
    }
    container::check(data, max_bytes)?;
    let options = LoadOptions::new()
        .on_partial_load(OnPartialLoad::Error)
        .verification_mode(VerificationMode::Check)
        .migrate_strings(StringMigration::NoMigration)
        .text_encoding(tree::ENCODING);
    let document = Automerge::load_with_options(data, options)
        .map_err(|error| Fault::corrupt(error.to_string()))?;
    if !document.get_missing_deps(&[]).is_empty() {
        return Err(Fault::corrupt("changes that others follow are missing"));
    }
    read(&document)?;
    Ok(document)
}

fn parse(text: &str) -> Result<json::Json, Fault> {
    if text.len() > MAX_VALUE_BYTES {
        return Err(Fault::limit("json_bytes", MAX_VALUE_BYTES as u64));
    }
    json::parse(text)
}

fn read(document: &Automerge) -> Result<json::Json, Fault> {
    tree::read(document, None, &PlainTexts::default())
}

fn actor_id(bytes: &[u8]) -> Result<ActorId, Fault> {
    if bytes.is_empty() || bytes.len() > MAX_ACTOR_BYTES {
        return Err(Fault::Argument {
            problem: format!("an actor has 1 to {MAX_ACTOR_BYTES} bytes"),
        });
    }
    Ok(ActorId::from(bytes))
}
