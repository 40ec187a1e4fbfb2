//! The Python face of the modules beside it.
//!
//! Every call works outside the interpreter's lock, and a panic comes back as an error. Work on a
//! document is done on a copy that replaces it when all went well: what failed has changed nothing.
//! (A copy is a few reference counts.) No call holds two documents' locks at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use automerge::Automerge;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::fault::Fault;
use crate::graph::Node;
use crate::{document, join as joining, text};

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::Document;
    #[pymodule_export]
    use super::join;

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods as _;
        super::quiet_panics();
        module.add("DEFAULT_TEXT_WORK", super::text::DEFAULT_WORK)?;
        module.add("DEFAULT_DOCUMENT_BYTES", super::DEFAULT_DOCUMENT_BYTES)
    }
}

const DEFAULT_DOCUMENT_BYTES: usize = 64 << 20;

/// A version as Python passes it: id, parents, JSON text.
type NodeTuple = (PyBackedStr, Vec<PyBackedStr>, JsonText);

/// A `str` of Python, which may hold what no UTF-8 text can.
struct JsonText(Option<PyBackedStr>);

impl<'py> FromPyObject<'_, 'py> for JsonText {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let text = object.cast::<PyString>()?.to_owned();
        Ok(Self(text.try_into().ok()))
    }
}

impl JsonText {
    fn text(&self) -> Result<&str, Fault> {
        self.0.as_deref().ok_or_else(|| Fault::Json {
            version: None,
            offset: 0,
            problem: "a lone surrogate".to_owned(),
        })
    }
}

/// Merge `candidates`; each of `nodes` is a version, its parents and its JSON text.
#[pyfunction]
#[pyo3(signature = (path, base, nodes, candidates, max_text_work))]
fn join(
    py: Python<'_>,
    path: PyBackedStr,
    base: PyBackedStr,
    nodes: Vec<NodeTuple>,
    candidates: Vec<PyBackedStr>,
    max_text_work: u64,
) -> PyResult<String> {
    detached(py, || {
        let nodes = nodes
            .iter()
            .map(|(version, parents, json)| {
                Ok(Node {
                    version,
                    parents: parents.iter().map(|parent| &**parent).collect(),
                    json: json.text().map_err(|fault| fault.in_version(version))?,
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        let candidates: Vec<&str> = candidates.iter().map(|id| &**id).collect();
        joining::join(&path, &base, &nodes, &candidates, max_text_work)
    })
}

/// An Automerge document that holds one JSON value with its whole history.
///
/// Instances may be shared between threads; a call that raises has changed nothing.
#[pyclass(frozen, module = "patchouli.automerge")]
struct Document(Mutex<Automerge>);

#[pymethods]
impl Document {
    /// Make a document that reads `text`, created by `actor` in one change.
    #[staticmethod]
    #[pyo3(signature = (text, *, actor))]
    fn from_json(py: Python<'_>, text: JsonText, actor: PyBackedBytes) -> PyResult<Self> {
        detached(py, || document::from_json(text.text()?, &actor)).map(Self::new)
    }

    /// Make the document that `save` wrote, checking every checksum and hash in it.
    #[staticmethod]
    #[pyo3(
        signature = (data, *, max_bytes = DEFAULT_DOCUMENT_BYTES),
        text_signature = "(data, *, max_bytes=67108864)"
    )]
    fn load(py: Python<'_>, data: PyBackedBytes, max_bytes: usize) -> PyResult<Self> {
        let loaded = detached(py, || {
            // A panic while reading bytes says that the bytes are not what they should be.
            match caught(|| document::load(&data, max_bytes)) {
                Err(Fault::Defect { problem }) => Err(Fault::Corrupt { problem }),
                outcome => outcome,
            }
        })?;
        Ok(Self::new(loaded))
    }

    /// Edit the value into `text` by one change, and return its hash or None.
    #[pyo3(signature = (text, *, actor))]
    fn replace(
        &self,
        py: Python<'_>,
        text: JsonText,
        actor: PyBackedBytes,
    ) -> PyResult<Option<String>> {
        self.update(py, |document| {
            document::replace(document, text.text()?, &actor)
        })
    }

    /// Take over every change of `other`, which stays as it is.
    fn merge(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<()> {
        let other = other.get();
        let mut copied = detached(py, || Ok(other.copy()))?;
        self.update(py, |document| Ok(document.merge(&mut copied).map(drop)?))
    }

    /// Return the value as canonical JSON text.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || document::to_json(&self.copy()))
    }

    /// Return the value as it was when `heads` were the heads.
    fn json_at(&self, py: Python<'_>, heads: Vec<String>) -> PyResult<String> {
        detached(py, || document::to_json_at(&self.copy(), &heads))
    }

    /// Return the hashes of the changes that no other change follows, ascending.
    fn heads(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        detached(py, || Ok(document::heads(&self.copy())))
    }

    /// Return the whole document, history included, as bytes for `load`.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let saved = detached(py, || Ok(self.copy().save()))?;
        Ok(PyBytes::new(py, &saved))
    }

    /// Return a copy that goes its own way.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        detached(py, || Ok(self.copy())).map(Self::new)
    }
}

impl Document {
    fn new(document: Automerge) -> Self {
        Self(Mutex::new(document))
    }

    fn copy(&self) -> Automerge {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn update<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Automerge) -> Result<T, Fault> + Send,
    ) -> PyResult<T> {
        detached(py, || {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changed = current.clone();
            let outcome = caught(|| work(&mut changed))?;
            *current = changed;
            Ok(outcome)
        })
    }
}

fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Fault> + Send,
) -> PyResult<T> {
    py.detach(|| caught(work))
        .map_err(|fault| error(py, &fault))
}

thread_local! {
    static CATCHING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Panics that become errors are not printed as well; any other is.
fn quiet_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !CATCHING.get() {
            print(panic);
        }
    }));
}

fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let outer = CATCHING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(outer);
    outcome.unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Fault::Defect {
            problem: format!("panic: {}", message.unwrap_or("without a message")),
        })
    })
}

/// The exception of `errors.py` that stands for `fault`.
fn error(py: Python<'_>, fault: &Fault) -> PyErr {
    let built = || {
        let facts = PyDict::new(py);
        let class = match fault {
            Fault::Json {
                version,
                offset,
                problem,
            } => {
                facts.set_item("version", version)?;
                facts.set_item("offset", offset)?;
                facts.set_item("problem", problem)?;
                "InvalidJsonError"
            }
            Fault::Limit { limit, maximum } => {
                facts.set_item("limit", limit)?;
                facts.set_item("maximum", maximum)?;
                "LimitExceededError"
            }
            Fault::Graph { problem, version } => {
                facts.set_item("problem", problem)?;
                facts.set_item("version", version)?;
                "InvalidGraphError"
            }
            Fault::Corrupt { problem } => {
                facts.set_item("problem", problem)?;
                "CorruptDocumentError"
            }
            Fault::UnknownHead { head } => {
                facts.set_item("head", head)?;
                "UnknownHeadError"
            }
            Fault::ActorReused { actor } => {
                facts.set_item("actor", actor)?;
                "ActorReusedError"
            }
            Fault::Defect { problem } => {
                facts.set_item("problem", problem)?;
                "DefectError"
            }
            Fault::Argument { problem } => return Ok(PyValueError::new_err(problem.clone())),
        };
        let error = py
            .import("patchouli.automerge.errors")?
            .getattr(class)?
            .call((), Some(&facts))?;
        Ok(PyErr::from_value(error))
    };
    built().unwrap_or_else(|failure: PyErr| failure)
}
