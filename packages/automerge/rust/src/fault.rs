//! What can go wrong, as facts. The binding turns each into one exception class of `errors.py`.

/// A refusal. Whatever was to be changed is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The text is no strict JSON, or holds a number that no document can hold unchanged.
    Json {
        version: Option<String>,
        offset: usize,
        problem: String,
    },
    /// A bound was exceeded.
    Limit { limit: &'static str, maximum: u64 },
    /// The version graph cannot be joined.
    Graph {
        problem: &'static str,
        version: String,
    },
    /// Stored bytes do not hold a whole, intact document of this package.
    Corrupt { problem: String },
    /// A named head is no change of this document.
    UnknownHead { head: String },
    /// One actor made two changes that do not know of each other.
    ActorReused { actor: String },
    /// An argument that no caller should pass.
    Argument { problem: String },
    /// A defect here or in a library; a caught panic among them.
    Defect { problem: String },
}

impl Fault {
    pub fn limit(limit: &'static str, maximum: u64) -> Self {
        Self::Limit { limit, maximum }
    }

    pub fn corrupt(problem: impl Into<String>) -> Self {
        Self::Corrupt {
            problem: problem.into(),
        }
    }

    /// The same fault, naming the version whose text it was found in.
    #[must_use]
    pub fn in_version(self, id: &str) -> Self {
        match self {
            Self::Json {
                offset, problem, ..
            } => Self::Json {
                version: Some(id.to_owned()),
                offset,
                problem,
            },
            other => other,
        }
    }
}

impl From<automerge::AutomergeError> for Fault {
    fn from(error: automerge::AutomergeError) -> Self {
        match error {
            automerge::AutomergeError::DuplicateSeqNumber(_, actor)
            | automerge::AutomergeError::DuplicateActorId(actor) => Self::ActorReused {
                actor: actor.to_hex_string(),
            },
            other => Self::Defect {
                problem: other.to_string(),
            },
        }
    }
}
