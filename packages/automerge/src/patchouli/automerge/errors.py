"""What calls of this package are refused with.

::

    AutomergeError
    ├─ InvalidJsonError       the text is no strict JSON; the caller's fault
    ├─ LimitExceededError     a bound of size or depth; the caller's fault
    ├─ InvalidGraphError      versions that cannot be joined; the caller's fault
    ├─ UnknownHeadError       a head that is no change of the document; the caller's fault
    ├─ ActorReusedError       one actor on two branches; the caller's fault
    ├─ CorruptDocumentError   stored bytes are not a whole, intact document
    └─ DefectError            a fault in this package or a library it stands on

Nothing is changed by a call that raises one of them, and none goes away when the call is repeated.
"""

from __future__ import annotations


class AutomergeError(Exception):
    """Base of every error of this package."""


class InvalidJsonError(AutomergeError):
    """Raised for a text that is not strict JSON, or has a number that would come back changed.

    `version` names the version the text belongs to, if any; `offset` counts bytes of UTF-8.
    """

    def __init__(self, *, version: str | None, offset: int, problem: str) -> None:
        self.version = version
        self.offset = offset
        self.problem = problem
        place = f"byte {offset}" if version is None else f"version {version!r}, byte {offset}"
        super().__init__(f"invalid JSON at {place}: {problem}")


class LimitExceededError(AutomergeError):
    """Raised when an argument is larger than the bound named `limit`, which is `maximum`."""

    def __init__(self, *, limit: str, maximum: int) -> None:
        self.limit = limit
        self.maximum = maximum
        super().__init__(f"more than {maximum} {limit}")


class InvalidGraphError(AutomergeError):
    """Raised when versions form no graph with one base that all of them descend from."""

    def __init__(self, *, problem: str, version: str) -> None:
        self.problem = problem
        self.version = version
        super().__init__(f"{problem}: {version!r}")


class UnknownHeadError(AutomergeError):
    """Raised when `head` is the hash of no change of the document."""

    def __init__(self, *, head: str) -> None:
        self.head = head
        super().__init__(f"no change has the hash {head!r}")


class ActorReusedError(AutomergeError):
    """Raised when `actor` (hexadecimal) made changes that do not know of each other."""

    def __init__(self, *, actor: str) -> None:
        self.actor = actor
        super().__init__(f"actor {actor} made two changes with one number")


class CorruptDocumentError(AutomergeError):
    """Raised when stored bytes are damaged, incomplete, or hold no JSON value."""

    def __init__(self, *, problem: str) -> None:
        self.problem = problem
        super().__init__(f"corrupt document: {problem}")


class DefectError(AutomergeError):
    """Raised when an internal expectation did not hold; a panic of the native code among them."""

    def __init__(self, *, problem: str) -> None:
        self.problem = problem
        super().__init__(f"defect: {problem}")
