"""Reading a database past the provider."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import FormatVersionError, ReferencesPlan, UnavailableError
from patchouli.provider_conformance.asking import committed
from patchouli.provider_conformance.builders import (
    FOREVER,
    OTHER_SCOPE,
    SCOPE,
    commit,
    create,
    delete,
    entity,
    update,
    version,
)
from patchouli.provider_sqlite import Archive, SqliteProvider

if TYPE_CHECKING:
    from pathlib import Path

A = entity("a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "db"


async def fill(provider: SqliteProvider) -> None:
    await provider.initialize(FOREVER)
    await committed(provider, create(A, "v1", {"key": "x"}))
    await committed(provider, update(A, "v1", "v2"))
    both = [version("v3", parents=["v2"]), version("v4", parents=["v1"])]
    await committed(provider, commit(A, *both, expected=["v2"]))
    await committed(provider, create(entity("a", scope=OTHER_SCOPE), "o1"))
    await committed(provider, create(entity("b"), "b1"))
    await committed(provider, delete(entity("b"), "b1", "b2"))


async def test_a_database_is_read_while_a_store_runs_on_it(path: Path) -> None:
    provider = SqliteProvider(path)
    await fill(provider)

    with Archive(path) as archive:
        heads, versions = archive.history(A)
        tombstones, _ = archive.history(entity("b"))
        scopes = archive.scopes_of("note", "a", limit=9)
        page = archive.read_references(ReferencesPlan(type="note", pointer="/key", limit=9))
        incarnation = archive.incarnation
    await committed(provider, update(entity("a", scope=OTHER_SCOPE), "o1", "o2"))
    await provider.shutdown()

    assert [head.id for head in heads] == ["v3", "v4"]
    assert {found.id: found.parents for found in versions} == {
        "v1": (),
        "v2": ("v1",),
        "v3": ("v2",),
        "v4": ("v1",),
    }
    assert [head.value_json for head in tombstones] == [None]
    assert scopes == [SCOPE, OTHER_SCOPE]
    assert page.texts == {"x"}
    assert incarnation


async def test_a_database_at_rest_is_left_as_it_is_also_after_a_crash(
    path: Path, tmp_path: Path
) -> None:
    provider = SqliteProvider(path)
    await fill(provider)
    killed = tmp_path / "killed"
    shutil.copytree(path.parent, killed)
    await provider.shutdown()
    before = {file.name: file.read_bytes() for file in killed.iterdir() if "shm" not in file.name}

    with Archive(killed / "db") as archive:
        heads, _ = archive.history(A)

    assert [head.id for head in heads] == ["v3", "v4"]
    after = {file.name: file.read_bytes() for file in killed.iterdir() if "shm" not in file.name}
    assert after == before


async def test_what_is_not_there_has_no_history(path: Path) -> None:
    provider = SqliteProvider(path)
    await fill(provider)

    with Archive(path) as archive:
        assert archive.history(entity("nobody")) == ([], [])
        assert archive.scopes_of("note", "nobody", limit=9) == []
        assert archive.scopes_of("note", "a", limit=1) == [SCOPE]
    await provider.shutdown()


def test_a_database_that_is_missing_is_told_and_not_made(path: Path) -> None:
    with pytest.raises(UnavailableError):
        Archive(path)

    assert not path.exists()


@pytest.mark.parametrize("application_id", [0, 7])
def test_a_database_of_nobody_or_another_program_is_refused(
    path: Path, application_id: int
) -> None:
    path.parent.mkdir(0o700)
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA application_id = {application_id}")
    connection.close()
    path.touch()
    path.chmod(0o600)

    with pytest.raises(FormatVersionError):
        Archive(path)
