"""The Automerge document of a version, with its whole retained history.

A version is one change, made by an actor that its id names. The change follows those of the parents
of the version, so the version graph is the graph of the changes. What is not a change of its own:
a version that says exactly what its parents say together, and a deletion, which has no value. A
version whose parents are not retained begins a history. The same versions give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from patchouli.automerge import Document, LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from patchouli.provider import Version, VersionId

_ACTOR_PREFIX = b"patchouli-version\0"


class Export(NamedTuple):
    """A document and what it holds.

    Attributes:
        data: The bytes of the document.
        heads: The hashes of its last changes.
        versions: How many versions it was made from.
    """

    data: bytes
    heads: tuple[str, ...]
    versions: int


def export_document(
    versions: Iterable[Version],
    wanted: VersionId,
    *,
    progress: Callable[[float], None] | None = None,
) -> Export:
    """Return the document of `wanted`, which is one of `versions` and has a value.

    `progress` is called with the part that is done, from 0 to 1.

    Raises:
        KeyError: It is not among them.
        ValueError: It is a deletion, or the history has a value that no document can hold.
    """
    known = {version.id: version for version in versions}
    if known[wanted].value_json is None:
        raise ValueError(f"version {wanted} is a deletion and has no value")
    history = _history(known, wanted)
    # How many versions still need a document; the last one takes it over instead of copying it.
    needed = Counter(parent for version in history for parent in _parents(known, version))
    documents: dict[VersionId, Document | None] = {}
    for number, version in enumerate(history):
        document: Document | None = None
        for parent in _parents(known, version):
            needed[parent] -= 1
            of_parent = documents[parent] if needed[parent] else documents.pop(parent)
            if document is not None and of_parent is not None:
                document.merge(of_parent)
            elif of_parent is not None:
                document = of_parent.fork() if needed[parent] else of_parent
        documents[version.id] = _edited(document, version)
        if progress is not None:
            progress((number + 1) / len(history))
    document = documents[wanted]
    assert document is not None  # noqa: S101 -- it has a value, see above
    return Export(document.save(), tuple(document.heads()), len(history))


def _edited(document: Document | None, version: Version) -> Document | None:
    """Return `document` with the change that `version` is; None if there still is no value."""
    if version.value_json is None:
        return document
    actor = _actor(version.id)
    try:
        if document is None:
            return Document.from_json(version.value_json, actor=actor)
        document.replace(version.value_json, actor=actor)
    except LimitExceededError as error:
        raise ValueError(f"the value of version {version.id} is too large: {error}") from error
    return document


def _history(known: Mapping[VersionId, Version], wanted: VersionId) -> list[Version]:
    """Return `wanted` and what it came from, parents before children."""
    history: list[Version] = []
    seen: set[VersionId] = set()
    pending = [(wanted, False)]
    while pending:
        version_id, is_done = pending.pop()
        if is_done:
            history.append(known[version_id])
        elif version_id not in seen:
            seen.add(version_id)
            pending.append((version_id, True))
            pending += [(parent, False) for parent in reversed(_parents(known, known[version_id]))]
    return history


def _parents(known: Mapping[VersionId, Version], version: Version) -> list[VersionId]:
    return sorted({parent for parent in version.parents if parent in known})


def _actor(version: VersionId) -> bytes:
    return sha256(_ACTOR_PREFIX + version.encode()).digest()[:16]
