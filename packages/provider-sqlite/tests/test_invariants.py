"""The check of the invariants notices each of them being broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider_conformance import ManualClock
from patchouli.provider_conformance.builders import (
    NOW,
    commit,
    control,
    create,
    entity,
    record,
    staging,
    unit,
    update,
    version,
)
from patchouli.provider_sqlite.changes import prune
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import Disk, open_writer, use_wal
from patchouli.provider_sqlite.lifecycle import Chance, start_run
from patchouli.provider_sqlite.testing import check_truth
from patchouli.provider_sqlite.testing.invariants import VIOLATIONS
from patchouli.provider_sqlite.units_staging import Stage

if TYPE_CHECKING:
    from pathlib import Path

BREAKS = {
    "the number of heads is the number of current versions": (
        "UPDATE entity SET head_count = 3 WHERE head_count = 2"
    ),
    "a version is stored once": """
        INSERT INTO version SELECT NULL, entity_id, version, published_cursor, ordinal,
            published_cursor, 1, state, parents, recorded_at, value FROM entity
        WHERE head_count = 1""",
    "the change at which an entity changed last names its heads": (
        "UPDATE change SET heads = '[\"other\"]'"
    ),
    "an entity changed last at its newest change": (
        "UPDATE entity SET changed_cursor = changed_cursor - 1 WHERE changed_cursor > 3"
    ),
    "a change and its entity belong to one scope": "UPDATE change SET scope_id = 7",
    "the frontier of a scope is its newest change, with its token": (
        "UPDATE scope SET frontier = frontier - 1"
    ),
    "a token stands for one position": """
        INSERT INTO causal_token SELECT token, scope_id, 99 FROM change LIMIT 1""",
    "what is pruned lies behind the horizon": "UPDATE scope SET pruned_through = 0",
    "no version is newer than the frontier of its scope": (
        "UPDATE version SET superseded_cursor = 999 WHERE superseded_cursor IS NOT NULL"
    ),
    "the parents of a version are versions of its entity": (
        "UPDATE entity SET parents = '[\"nobody\"]' WHERE parents IS NOT NULL"
    ),
    "a finished work unit has left nothing but its name": (
        "UPDATE work_unit SET state = 'expired' WHERE state = 'open'"
    ),
    "the baseline of a work unit is a position of its scope": (
        "UPDATE work_unit SET baseline_cursor = 999"
    ),
    "a work unit has a closing entity exactly when it is sealed": (
        "UPDATE work_unit_entity SET is_closing = 0"
    ),
    "the heads of a staged entity are known in its work unit": (
        "UPDATE work_unit SET baseline_cursor = 1 WHERE state = 'open'"
    ),
    "staged versions are counted, and the last mutation has the token of its entity": (
        "UPDATE work_unit_entity SET token = 'other' WHERE versions = 2"
    ),
    "a staged token stands for no position": """
        INSERT INTO causal_token SELECT token, 1, 1 FROM work_unit_version
        WHERE token IS NOT NULL LIMIT 1""",
    "a staged version is not published": (
        "UPDATE version SET version = 's1' WHERE entity_id = 1 AND version = 'a1'"
    ),
    "a record is found by the digest of its identity": "UPDATE idempotency SET identity = 'other'",
    "no session is ahead of its scope": "UPDATE session SET read_cursor = 999",
    "every number of a scope, an entity or a unit leads somewhere": (
        "UPDATE version SET entity_id = 777"
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a pruned create, updates, a conflict, and a unit in each of its states."""
    path = tmp_path / "db"
    path.touch(mode=0o600)
    connection = open_writer(path, cache_kib=2000, disk=Disk())
    use_wal(connection)
    start_run(connection, witness=None, chance=Chance("name", bytes(32)), now_unix_ms=NOW)
    ledger = Ledger(connection, ManualClock())
    a, b = entity("a"), entity("b")
    ledger.publish([create(a, "a1", recorded_at_unix_ms=5)])
    ledger.publish([update(a, "a1", "a2"), create(b, "b1")])
    ledger.publish([commit(b, version("b2"), expected=["b1"], heads=["b1", "b2"])])
    known, session = record(control("once")), control("session")
    ledger.publish([update(a, "a2", "a3", idempotency=known, write_sessions=(session,))])
    prune(connection, recorded_before_unix_ms=6, through=99, limit=9)
    for name, is_closed in (("open", False), ("sealed", True), ("committed", True)):
        key, base = (entity("b"), "b1") if name == "open" else (entity(name), "")
        new = version(f"{name}2") if base else version(f"{name}1")
        staging_ = staging(unit(name))
        if base:
            first = commit(a, version("s1", parents=["a3"]), expected=["a3"])
            second = commit(a, version("s2", parents=["s1"]), expected=["s1"])
            third = commit(key, new, expected=["b1", "b2"], heads=["b2", new.id])
            ledger.publish([Stage(made, staging_) for made in (first, second, third)])
            continue
        ledger.publish([Stage(commit(key, new), staging_)])
        if name == "sealed":
            ledger.publish([create(key, "overtakes")])
        if is_closed:
            last = create(entity(f"{name}-last"), f"{name}-last")
            ledger.publish([Stage(last, staging(unit(name), close=True))])
    connection.close()
    return path


def test_a_sound_database_passes(path: Path) -> None:
    check_truth(path)


@pytest.mark.parametrize("invariant", VIOLATIONS)
def test_a_broken_invariant_is_named(path: Path, invariant: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA ignore_check_constraints = ON").fetchall()
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    connection.execute(BREAKS[invariant])
    assert connection.changes() > 0
    connection.close()
    broken = {invariant: VIOLATIONS[invariant]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchouli.provider_sqlite.testing.invariants.VIOLATIONS", broken)
        patch.setattr("patchouli.provider_sqlite.testing.invariants.SOUND", "SELECT 'ok'")
        with pytest.raises(AssertionError, match=invariant):
            check_truth(path)


def test_a_damaged_file_is_noticed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 3 + 200] = bytes(200)
    path.write_bytes(content)

    with pytest.raises((AssertionError, apsw.CorruptError)):
        check_truth(path)
