//! Automerge for JSON fields: joins of version graphs, and documents.

pub mod container;
pub mod document;
pub mod fault;
pub mod graph;
pub mod join;
pub mod json;
#[cfg(feature = "python")]
mod python;
pub mod shared;
pub mod text;
pub mod tree;
