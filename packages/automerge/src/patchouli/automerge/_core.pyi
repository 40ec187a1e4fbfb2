"""Face of the native module. Every call releases the interpreter's lock while it works."""

from collections.abc import Sequence
from typing import Final, final

DEFAULT_TEXT_WORK: Final[int]
DEFAULT_DOCUMENT_BYTES: Final[int]

def join(
    path: str,
    base: str,
    nodes: Sequence[tuple[str, Sequence[str], str]],
    candidates: Sequence[str],
    max_text_work: int,
) -> str:
    """Merge `candidates` as `patchouli.automerge.join` does.

    Each of `nodes` is a version, its parents and its JSON text.
    """

@final
class Document:
    """An Automerge document that holds one JSON value with its whole history.

    Strings are collaborative texts of code points, arrays are lists, objects are maps. Instances
    may be shared between threads; a call that raises has changed nothing.
    """

    @staticmethod
    def from_json(text: str, *, actor: bytes) -> Document:
        """Make a document that reads `text`, created by `actor` in one change.

        The same text and actor give the same bytes in every process.

        Raises:
            InvalidJsonError: `text` is not strict JSON.
            LimitExceededError: It is too long or nested too deep.
            ValueError: `actor` has not between 1 and 256 bytes.
        """

    @staticmethod
    def load(data: bytes, *, max_bytes: int = 67108864) -> Document:
        """Make the document that `save` wrote, checking every checksum and hash in it.

        Raises:
            CorruptDocumentError: A byte differs, a change is missing, or it holds no JSON value.
            LimitExceededError: `data` is longer than `max_bytes`, stored or unpacked.
        """

    def replace(self, text: str, *, actor: bytes) -> str | None:
        """Edit the value into `text` by one change of `actor`, which follows all heads.

        Texts are edited cluster by cluster, maps member by member, lists position by position;
        what is equal is left alone. Return the hash of the change, or `None` if there was nothing
        to edit.

        Raises:
            InvalidJsonError: `text` is not strict JSON.
            LimitExceededError: It is too long or nested too deep.
            ValueError: `actor` has not between 1 and 256 bytes.
        """

    def merge(self, other: Document) -> None:
        """Take over every change of `other`, which stays as it is.

        Raises:
            ActorReusedError: One actor made changes on both sides that do not know of each other.
        """

    def json(self) -> str:
        """Return the value as canonical JSON text."""

    def json_at(self, heads: Sequence[str]) -> str:
        """Return the value as it was when `heads` were the heads.

        Raises:
            UnknownHeadError: A head is no change of this document.
            ValueError: `heads` is empty.
        """

    def heads(self) -> list[str]:
        """Return the hashes of the changes that no other change follows, ascending."""

    def save(self) -> bytes:
        """Return the whole document, history included, as bytes for `load`."""

    def fork(self) -> Document:
        """Return a copy that goes its own way."""
