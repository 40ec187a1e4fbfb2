"""What keeps the library small and its bytes right: the collection and the check of objects.

*Collection* removes objects that no stored version names. Objects that have not been young for the
grace period are the candidates; the store is asked, page by page, what all versions of all scopes
name, superseded and staged ones included; what is left over goes. No lock is held meanwhile: a
request that relies on an object makes it young first, and a young one is not removed. A database
that the library did not serve before gets the grace time, too, since it may be the wrong one.

*The check* reads objects whole and compares them with their names. It changes nothing: an object
that is damaged is put right by the next upload of its content.

Both work in small steps on a thread, with pauses between them that are longer than the steps.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from patchouli.backend.artifacts.library import SHARDS, Digest, list_objects, read_object
from patchouli.backend.artifacts.threads import on_thread
from patchouli.provider import EntityKey, ReferencesPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from patchouli.backend.artifacts.library import ArtifactLibrary
    from patchouli.provider import ReferencesPage

T = TypeVar("T")

ARTIFACT: Final = "artifact"
KEY_POINTER: Final = "/placement/key"
KEY_PREFIX: Final = "sha256/"

MOST_CANDIDATES: Final = 65_536  # for one look through the store; more take further looks
ENTITIES_PER_PAGE: Final = 256
PIECES_PER_STEP: Final = 8  # of an object that is checked
PAUSE_PER_STEP: Final = 4.0  # times the duration of a step that the daemon is left alone after it
LONGEST_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection saw and did.

    Attributes:
        objects: Objects that there were.
        young: Of them, those that were too young to be looked at.
        removed: Of them, those that went, or would have gone.
        removed_bytes: Their length.
    """

    objects: int
    young: int
    removed: int
    removed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check saw.

    Attributes:
        objects: Objects that were read.
        bytes: Their length.
        damaged: Those whose bytes are not what their name says, or cannot be read.
    """

    objects: int
    bytes: int
    damaged: tuple[Digest, ...]


async def collect(
    library: ArtifactLibrary,
    read_references: Callable[[ReferencesPlan], Awaitable[ReferencesPage]],
    *,
    before_unix_ms: int,
    is_trial: bool = False,
    pace: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> Collected:
    """Remove the objects that were last young before `before_unix_ms` and that nothing names.

    A trial only counts them. After each step it pauses for `pace` times the duration of the step.
    `progress` is called with the part that is done, from 0 to 1.

    Raises:
        ProviderError: The store cannot tell; what was not looked at stays.
        ArtifactStoreError: The file system refuses; the same holds.
    """
    objects = young = removed = removed_bytes = 0
    candidates: set[Digest] = set()
    for shard in range(SHARDS):
        step = partial(_old_objects, library, shard, before_unix_ms)
        found, old = await _paced(step, pace)
        objects += found
        young += found - len(old)
        candidates.update(old)
        if progress is not None:
            progress(shard / SHARDS)
        if len(candidates) < MOST_CANDIDATES and shard < SHARDS - 1:
            continue
        await _keep_named(candidates, read_references)
        lengths = await _remove(
            library, candidates, before_unix_ms=before_unix_ms, is_trial=is_trial, pace=pace
        )
        removed += len(lengths)
        removed_bytes += sum(lengths)
        candidates.clear()
    if progress is not None:
        progress(1.0)
    return Collected(objects=objects, young=young, removed=removed, removed_bytes=removed_bytes)


async def check_objects(
    root: Path,
    shards: range = range(SHARDS),
    *,
    pace: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> Checked:
    """Compare the objects below `root` with their names; a library may be open there or not.

    Raises:
        ArtifactStoreError: A directory cannot be read.
    """
    objects = length = 0
    damaged: list[Digest] = []
    for number, shard in enumerate(shards):
        for digest in await _paced(partial(list_objects, root, shard), pace):
            pieces = read_object(root, digest)
            hasher = sha256()
            try:
                while size := await _paced(partial(_hash_some, pieces, hasher.update), pace):
                    length += size
            except FileNotFoundError:
                continue  # collected since
            except OSError:
                damaged.append(digest)
            else:
                if hasher.hexdigest() != digest:
                    damaged.append(digest)
            objects += 1
        if progress is not None:
            progress((number + 1) / len(shards))
    return Checked(objects=objects, bytes=length, damaged=tuple(damaged))


def _old_objects(
    library: ArtifactLibrary, shard: int, before_unix_ms: int
) -> tuple[int, list[Digest]]:
    """Return how many objects a shard has, and those that are candidates."""
    found = library.objects(shard)
    return len(found), [
        digest for digest in found if library.is_old(digest, before_unix_ms=before_unix_ms)
    ]


async def _keep_named(
    candidates: set[Digest], read_references: Callable[[ReferencesPlan], Awaitable[ReferencesPage]]
) -> None:
    """Take out of `candidates` what any version of any scope names."""
    after: EntityKey | None = None
    while candidates:
        page = await read_references(
            ReferencesPlan(type=ARTIFACT, pointer=KEY_POINTER, limit=ENTITIES_PER_PAGE, after=after)
        )
        candidates.difference_update(Digest(text.removeprefix(KEY_PREFIX)) for text in page.texts)
        if page.reached is None:
            return
        after = page.reached


async def _remove(
    library: ArtifactLibrary,
    digests: set[Digest],
    *,
    before_unix_ms: int,
    is_trial: bool,
    pace: float,
) -> list[int]:
    """Remove what still may go, and return the lengths."""
    if not digests:
        return []
    if is_trial:
        return await on_thread(lambda: [library.length(digest) for digest in digests])
    grants = await _paced(partial(library.grants, digests), pace)
    lengths: list[int] = []
    for digest in sorted(digests):
        remove = partial(library.remove, digest, grants[digest], before_unix_ms=before_unix_ms)
        length = await _paced(remove, pace)
        if length is not None:
            lengths.append(length)
    return lengths


def _hash_some(pieces: Iterator[bytes], update: Callable[[bytes], None]) -> int:
    """Hash the next pieces and return their length, 0 at the end."""
    length = 0
    for piece in islice(pieces, PIECES_PER_STEP):
        update(piece)
        length += len(piece)
    return length


async def _paced(step: Callable[[], T], pace: float) -> T:
    started = time.monotonic()
    result = await on_thread(step)
    if pace:
        pause = pace * (time.monotonic() - started)
        await asyncio.sleep(min(pause, LONGEST_PAUSE_SECONDS))
    return result
