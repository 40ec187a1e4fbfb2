"""A collection of artifact bytes that a power loss ends at any sync, or that is killed there."""

from __future__ import annotations

import asyncio
import os
import shutil
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from patchouli.backend import ArtifactLibrary, ArtifactStoreError, Collected, collect
from patchouli.backend.artifacts.library import Digest
from patchouli.provider import ReferencesPage, ReferencesPlan, ScopeText

from tests.crash.files import ForgetfulFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

SCOPES = (ScopeText('{"team":"north"}'), ScopeText('{"team":"south"}'))
NEEDED, NEEDLESS = b"needed", (b"needless", b"as needless")


def digest_of(content: bytes) -> Digest:
    return Digest(sha256(content).hexdigest())


def fill(root: Path) -> None:
    """Let two scopes upload everything."""
    library = ArtifactLibrary(root)
    for content in (NEEDED, *NEEDLESS):
        part = library.create_part("upload")
        os.pwrite(part, content, 0)
        library.publish("upload", part, digest_of(content), length=len(content))
        os.close(part)
        for scope in SCOPES:
            library.grant(scope, digest_of(content))
    library.close()


async def read_references(_: ReferencesPlan) -> ReferencesPage:
    return ReferencesPage(texts=frozenset({f"sha256/{digest_of(NEEDED)}"}), reached=None)


def collect_in(root: Path) -> Collected:
    """Collect, long after the last upload."""
    for path in objects(root):
        os.utime(path, (0, 0))
    library = ArtifactLibrary(root)
    try:
        return asyncio.run(collect(library, read_references, before_unix_ms=1))
    finally:
        library.close()


def objects(root: Path) -> list[Path]:
    return sorted(path for path in (root / "objects").rglob("*") if path.is_file())


def contents(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in objects(root)}


def granted(root: Path) -> set[str]:
    return {path.name for path in (root / "grants").rglob("*") if path.is_file()}


def require_sound(root: Path) -> None:
    """Fail unless what is needed is there, and bytes are there wherever a grant says so."""
    assert NEEDED in contents(root)
    assert digest_of(NEEDED) in granted(root)
    assert granted(root) <= {digest_of(content) for content in contents(root)}


@pytest.fixture
def cases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Iterator[ForgetfulFiles]]:
    """Directories with a full library on the disk, one after the other."""
    opened: list[ForgetfulFiles] = []

    def begin() -> Iterator[ForgetfulFiles]:
        for number in count():
            case = folder / str(number)
            case.mkdir()
            opened.append(ForgetfulFiles(case, monkeypatch))
            fill(case / "artifacts")
            yield opened[-1]
            opened.pop().close()
            shutil.rmtree(case)

    yield begin()
    for files in opened:
        files.close()


@pytest.mark.slow
def test_at_any_sync_a_power_loss_leaves_bytes_for_each_grant_and_a_collection_that_ends(
    folder: Path, cases: Iterator[ForgetfulFiles]
) -> None:
    for number in count():
        files = next(cases)
        root = folder / str(number) / "artifacts"
        files.syncs_left = number
        try:
            collect_in(root)
            is_whole = True
        except (ArtifactStoreError, OSError):
            is_whole = False
        files.syncs_left = None
        require_sound(root)  # for the process that follows one that was killed there

        files.lose_power("artifacts", folder / "image")
        require_sound(folder / "image")
        done = collect_in(folder / "image")

        assert contents(folder / "image") == {NEEDED}
        assert granted(folder / "image") == {digest_of(NEEDED)}
        shutil.rmtree(folder / "image")
        if is_whole:
            assert done.removed == 0
            break
    assert number > 6  # names that a start syncs, the folders of two grants and the shard, twice
