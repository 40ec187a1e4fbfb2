"""A group of commits leaves what its commits would have left one by one, and answers the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    Commit,
    Committed,
    Cursor,
    DeadlineExceededError,
    IdentityTaken,
    MisuseError,
    Replayed,
    ScopeText,
    UnavailableError,
    VersionId,
    VersionState,
)
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    ManualClock,
    commit,
    control,
    create,
    delete,
    entity,
    record,
    tombstone,
    update,
    version,
)
from patchouli.provider_sqlite import bulk
from patchouli.provider_sqlite.commits import LOST, Ledger
from patchouli.provider_sqlite.connection import Connection, Disk, open_writer, use_wal
from patchouli.provider_sqlite.lifecycle import Chance, start_run
from patchouli.provider_sqlite.testing import check_truth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

A, B, C = entity("a"), entity("b"), entity("c", scope=OTHER_SCOPE)
NAMES = ("v1", "v2", "v3", "v4")


def open_truth(path: Path, *, busy_timeout_ms: int = 5_000) -> Connection:
    connection = open_writer(path, cache_kib=2000, disk=Disk(), busy_timeout_ms=busy_timeout_ms)
    use_wal(connection)
    start_run(connection, witness=None, chance=Chance("incarnation", bytes(32)), now_unix_ms=NOW)
    return connection


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    path = tmp_path / "db"
    path.touch(mode=0o600)
    connection = open_truth(path, busy_timeout_ms=10)
    yield connection
    connection.close()
    check_truth(path)


@pytest.fixture
def ledger(connection: Connection, clock: ManualClock) -> Ledger:
    return Ledger(connection, clock)


class RunningClock(ManualClock):
    """A clock that goes on by one at every look."""

    def unix_ms(self) -> int:
        self.now_unix_ms += 1
        return self.now_unix_ms


def test_equal_identities_in_one_group_are_one_mutation(
    connection: Connection, ledger: Ledger
) -> None:
    def once(name: str, request: str = '"request"', **members: Any) -> Commit:
        known = record(control("once"), request, result_json=f'"{name}"')
        return create(entity(name), name, idempotency=known, **members)

    conflicted = [version("c1"), version("c2")]
    several = commit(entity("c"), *conflicted, idempotency=record(control("twice")))
    again = create(entity("d"), "d", idempotency=record(control("twice")))

    results = ledger.publish(
        [once("a"), once("b"), several, again, once("z", '"other"'), create(B, "b")]
    )

    assert results == [
        Committed(cursor=Cursor(1)),
        Replayed(result_json='"a"'),
        Committed(cursor=Cursor(2)),
        Replayed(result_json='"result"'),
        IdentityTaken(),
        Committed(cursor=Cursor(3)),
    ]
    assert [heads_of(connection, name) for name in "abcdz"] == [["a"], ["b"], ["c1", "c2"], [], []]


def test_creates_of_one_group_keep_their_order_whatever_becomes_of_those_before(
    ledger: Ledger,
) -> None:
    """The second one finds its entity free, because the first one is told what was before."""
    known = record(control("once"))
    ledger.publish([create(entity("a"), "a", idempotency=known)])

    results = ledger.publish(
        [
            create(entity("b"), "b1", idempotency=known),
            create(entity("b"), "b2"),
            create(entity("c"), "c"),
        ]
    )

    assert results == [
        Replayed(result_json='"result"'),
        Committed(cursor=Cursor(2)),
        Committed(cursor=Cursor(3)),
    ]


def test_a_replay_of_what_came_too_late_is_no_replay(connection: Connection) -> None:
    clock = RunningClock()
    ledger = Ledger(connection, clock)
    known = record(control("once"), result_json='"first"')
    # The first one is in time when it is written and late before COMMIT.
    tight = create(A, "a1", idempotency=known, deadline_unix_ms=clock.now_unix_ms + 3)

    results = ledger.publish([tight, create(B, "b1", idempotency=known)])

    assert kinds(results) == ["DeadlineExceededError", "Committed"]
    assert heads_of(connection, "a") == []


def test_a_failed_group_leaves_no_record_and_no_session(
    connection: Connection, ledger: Ledger
) -> None:
    ledger.publish([create(A, "a1")])
    bad = create(
        B,
        "b1",
        causal_token=CausalToken("token-a1"),
        idempotency=record(control("bad")),
        write_sessions=(control("bad"),),
    )
    good = create(C, "c1", idempotency=record(control("good")), write_sessions=(control("good"),))

    results = ledger.publish([bad, good])

    assert kinds(results) == ["MisuseError", "Committed"]
    assert connection.execute("SELECT identity FROM idempotency").get == control("good")
    assert connection.execute("SELECT key, write_cursor FROM session").get == (control("good"), 2)


def kinds(results: Sequence[object]) -> list[str]:
    return [type(result).__name__ for result in results]


def heads_of(connection: Connection, name: str) -> list[str]:
    sql = """
        SELECT version FROM entity WHERE id = ?1 AND head_count = 1 UNION ALL
        SELECT v.version FROM version v JOIN entity e USING (entity_id)
        WHERE e.id = ?1 AND superseded_cursor IS NULL ORDER BY 1
    """
    return [row[0] for row in connection.execute(sql, (name,))]


def test_commits_to_one_entity_in_one_group_see_each_other_in_order(
    connection: Connection, ledger: Ledger
) -> None:
    results = ledger.publish(
        [
            create(A, "v1"),
            create(B, "v1", causal_token=CausalToken("other")),
            update(A, "v1", "v2"),
            update(A, "v1", "v3"),
            update(A, "v2", "v4"),
        ]
    )

    assert kinds(results) == ["Committed", "Committed", "Committed", "Lost", "Committed"]
    assert heads_of(connection, "a") == ["v4"]


def test_plain_updates_in_one_group_lose_alone(connection: Connection, ledger: Ledger) -> None:
    ledger.publish([create(A, "a1"), create(B, "b1"), create(C, "c1")])

    results = ledger.publish(
        [update(A, "a1", "a2"), update(B, "gone", "b2"), delete(C, "c1", "c2")]
    )

    assert kinds(results) == ["Committed", "Lost", "Committed"]
    assert [heads_of(connection, name) for name in "abc"] == [["a2"], ["b1"], ["c2"]]


BAD: dict[str, Commit] = {
    "no JSON": commit(B, replace(version("bad"), value_json="{")),
    "a token used before": create(B, "bad", causal_token=CausalToken("token-a1")),
    "a time beyond 64 bits": create(B, "bad", recorded_at_unix_ms=INTEGER_MAX + 1),
    "half of a surrogate pair": create(entity("\ud800"), "bad"),
    "event metadata that is no object": create(B, "bad", event_meta_json="[]"),
    "an active version without a value": commit(
        B, replace(tombstone("bad"), state=VersionState.ACTIVE)
    ),
    "a head twice": commit(B, version("bad"), heads=["bad", "bad"]),
    "an unknown parent": commit(B, version("bad", parents=["nobody"])),
    "an empty type": create(entity("b", kind=""), "bad"),
    "a scope that is no object": create(entity("b", scope=ScopeText("[]")), "bad"),
    "a scope that is no JSON": create(entity("b", scope=ScopeText("{")), "bad"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_commit_that_cannot_be_stored_fails_alone(
    connection: Connection, ledger: Ledger, bad: Commit
) -> None:
    ledger.publish([create(A, "a1")])

    results = ledger.publish([update(A, "a1", "a2"), bad, create(C, "c1"), update(A, "a2", "a3")])

    assert kinds(results) == ["Committed", "MisuseError", "Committed", "Committed"]
    assert heads_of(connection, "a") == ["a3"]
    assert heads_of(connection, "c") == ["c1"]
    assert connection.execute("SELECT count(*) FROM change").get == 4
    assert connection.execute("SELECT count(*) FROM entity").get == 2


def test_a_version_of_the_entity_cannot_be_stored_again(
    connection: Connection, ledger: Ledger
) -> None:
    ledger.publish([create(A, "v1"), update(A, "v1", "v2"), create(B, "b1")])

    again = update(A, "v2", "v1", causal_token=CausalToken("new"))
    beside = update(B, "b1", "b2")
    results = ledger.publish([again, beside])

    assert kinds(results) == ["MisuseError", "Committed"]
    assert heads_of(connection, "a") == ["v2"]


def test_a_token_of_a_pruned_change_is_not_free(connection: Connection, ledger: Ledger) -> None:
    ledger.publish([create(A, "v1")])
    connection.execute("INSERT INTO causal_token SELECT token, scope_id, cursor FROM change")
    connection.execute("UPDATE scope SET pruned_through = 1")
    connection.execute("DELETE FROM change")

    (result,) = ledger.publish([create(B, "b1", causal_token=CausalToken("token-v1"))])

    assert isinstance(result, MisuseError)


def test_a_deadline_that_passes_before_the_commit_rolls_back_its_own_part(
    connection: Connection,
) -> None:
    clock = RunningClock()
    ledger = Ledger(connection, clock)
    ledger.publish([create(A, "a1")])
    # It is looked at before the commit is written and again before COMMIT.
    tight = update(A, "a1", "a2", deadline_unix_ms=clock.now_unix_ms + 2)

    results = ledger.publish([tight, create(B, "b1"), create(C, "c1")])

    assert kinds(results) == ["DeadlineExceededError", "Committed", "Committed"]
    assert heads_of(connection, "a") == ["a1"]
    assert heads_of(connection, "b") == ["b1"]


def test_what_builds_on_a_late_commit_of_its_group_is_lost(connection: Connection) -> None:
    clock = RunningClock()
    ledger = Ledger(connection, clock)
    ledger.publish([create(A, "a1")])
    tight = update(A, "a1", "a2", deadline_unix_ms=clock.now_unix_ms + 2)

    results = ledger.publish([tight, update(A, "a2", "a3")])

    assert isinstance(results[0], DeadlineExceededError)
    assert results[1] is LOST
    assert heads_of(connection, "a") == ["a1"]


def test_a_lost_race_is_told_though_it_is_late(ledger: Ledger, clock: ManualClock) -> None:
    ledger.publish([create(A, "a1")])

    results = ledger.publish(
        [
            create(A, "a2", deadline_unix_ms=0),
            update(A, "gone", "a3", deadline_unix_ms=0),
            create(B, "b1", deadline_unix_ms=0),
        ]
    )

    assert kinds(results) == ["Lost", "Lost", "DeadlineExceededError"]


def test_a_foreign_lock_is_everybodys_answer_after_one_wait(
    connection: Connection, ledger: Ledger, tmp_path: Path
) -> None:
    foreign = apsw.Connection(str(tmp_path / "db"))
    foreign.execute("BEGIN IMMEDIATE")

    results = ledger.publish([create(A, "a1"), create(B, "b1")])
    foreign.execute("ROLLBACK")
    foreign.close()
    after = ledger.publish([create(A, "a1"), create(B, "b1")])

    assert [type(result) for result in results] == [UnavailableError, UnavailableError]
    assert results[0] is not None
    assert kinds(after) == ["Committed", "Committed"]


def test_a_commit_for_which_there_is_no_room_fails_alone(
    connection: Connection, ledger: Ledger
) -> None:
    ledger.publish([create(A, "a1")])
    pages = connection.execute("PRAGMA page_count").get
    connection.execute(f"PRAGMA max_page_count = {pages + 5}")

    results = ledger.publish(
        [update(A, "a1", "a2"), create(B, "b1", "x" * 100_000), create(C, "c1")]
    )

    assert kinds(results) == ["Committed", "StoreFullError", "Committed"]
    assert heads_of(connection, "a") == ["a2"]
    assert heads_of(connection, "b") == []


def test_a_group_that_failed_uses_no_cursor_and_no_entity(
    connection: Connection, ledger: Ledger
) -> None:
    (first,) = ledger.publish([create(A, "a1")])
    ledger.publish([create(A, "a2"), create(B, "b1", causal_token=CausalToken("token-a1"))])
    (second,) = ledger.publish([create(C, "c1")])

    assert first == Committed(cursor=Cursor(1))
    assert second == Committed(cursor=Cursor(2))
    assert connection.execute("SELECT max(entity_id) FROM entity").get == 2


def test_more_rows_than_a_statement_takes_are_several_statements(
    connection: Connection, ledger: Ledger
) -> None:
    number = 2 * bulk.ROWS_LIMIT + 3
    names = [f"e{n}" for n in range(number)]
    ledger.publish([create(entity(name), f"{name}-1") for name in names])

    results = ledger.publish([update(entity(name), f"{name}-1", f"{name}-2") for name in names])

    assert kinds(results) == ["Committed"] * number
    assert [heads_of(connection, name) for name in names] == [[f"{name}-2"] for name in names]


def test_scopes_beyond_those_remembered_are_found_again(
    connection: Connection, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchouli.provider_sqlite.commits.SCOPES_REMEMBERED", 3)
    scopes = [ScopeText(f'{{"n":{n}}}') for n in range(5)]
    for scope in scopes:
        ledger.publish([create(entity(scope=scope), f"v-{scope}")])

    results = ledger.publish(
        [update(entity(scope=scope), f"v-{scope}", f"w-{scope}") for scope in scopes]
    )

    assert kinds(results) == ["Committed"] * 5
    assert connection.execute("SELECT count(*) FROM scope").get == 5


# A history is made of short words over few names, so that races, repetitions, conflicts and
# resolutions are frequent.
subsets = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)


@st.composite
def within_control(draw: st.DrawFn, made: Commit) -> Commit:
    """Return `made` with a token of its own, perhaps under an identity and in sessions."""
    sessions = draw(st.lists(st.sampled_from(["s1", "s2"]), max_size=2, unique=True))
    made = replace(
        made,
        causal_token=CausalToken(draw(st.uuids(version=4)).hex),
        write_sessions=tuple(control(name, scope=made.key.scope) for name in sessions),
    )
    identity = draw(st.sampled_from([None, None, "i1", "i2"]))
    if identity is None:
        return made
    asked_at = draw(st.sampled_from([NOW, NOW + 5]))
    return replace(
        made,
        idempotency=record(
            control(identity),
            draw(st.sampled_from(['"first"', '"first"', '"second"'])),
            result_json=f'"{made.causal_token}"',
            now_unix_ms=asked_at,
            expires_at_unix_ms=asked_at + draw(st.sampled_from([3, 10])),
        ),
    )


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    new = [
        draw(st.sampled_from([version, tombstone]))(name, parents=draw(subsets))
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    ]
    made = commit(
        draw(st.sampled_from([A, B, C])),
        *new,
        expected=draw(subsets),
        heads=draw(st.one_of(st.none(), st.lists(st.sampled_from(NAMES), max_size=2))),
        deadline_unix_ms=draw(st.sampled_from([None, None, None, NOW, NOW + 1])),
    )
    return draw(within_control(made))


@st.composite
def plain_commits(draw: st.DrawFn) -> Commit:
    key = draw(st.sampled_from([A, B, C]))
    present = draw(st.sampled_from([None, *NAMES]))
    name = draw(st.sampled_from(NAMES))
    made = create(key, name) if present is None else update(key, present, name)
    return draw(within_control(made))


# What the tables say, with tokens in the place of cursors and keys in the place of row numbers.
STORY = {
    "entities": """
        SELECT s.text, e.type, e.id, head_count, version, p.token, ordinal, state, parents,
               e.recorded_at, value, c.token
        FROM entity e JOIN scope s USING (scope_id)
        JOIN change c ON c.cursor = e.changed_cursor
        LEFT JOIN change p ON p.cursor = e.published_cursor ORDER BY 1, 2, 3""",
    "versions": """
        SELECT s.text, e.type, e.id, v.version, p.token, v.ordinal, g.token, superseded_at,
               v.state, v.parents, v.value
        FROM version v JOIN entity e USING (entity_id) JOIN scope s USING (scope_id)
        JOIN change p ON p.cursor = v.published_cursor
        LEFT JOIN change g ON g.cursor = v.superseded_cursor ORDER BY 1, 2, 3, 4""",
    "changes of each entity in order": """
        SELECT s.text, e.type, e.id, kind, heads, token, event_meta, c.recorded_at
        FROM change c JOIN entity e USING (entity_id) JOIN scope s ON s.scope_id = c.scope_id
        ORDER BY s.text, e.type, e.id, cursor""",
    "records": """
        SELECT identity, request, result, expires_at, unit_id FROM idempotency ORDER BY 1""",
    # The frontier of a session is one of its scope, of which the order in a group is free.
    "sessions": """
        SELECT s.text, key, read_cursor, write_cursor > 0 FROM session JOIN scope s USING (scope_id)
        ORDER BY 1, 2""",
}


def story_of(connection: Connection) -> dict[str, list[Any]]:
    return {name: connection.execute(sql).fetchall() for name, sql in STORY.items()}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(groups=st.lists(st.lists(plain_commits() | commits(), min_size=1, max_size=6), max_size=4))
def test_a_group_is_its_commits_one_by_one(
    groups: list[list[Commit]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    stories: list[dict[str, list[Any]]] = []
    answers: list[list[str]] = []
    for one_by_one in (False, True):
        path = tmp_path_factory.mktemp("truth") / "db"
        path.touch(mode=0o600)
        connection = open_truth(path)
        ledger = Ledger(connection, ManualClock())
        told: list[str] = []
        for group in groups:
            parts = [[made] for made in group] if one_by_one else [group]
            for part in parts:
                told += kinds(ledger.publish(part))
        answers.append(told)
        stories.append(story_of(connection))
        connection.close()
        check_truth(path)

    assert answers[0] == answers[1]
    assert stories[0] == stories[1]


def test_ids_are_texts_of_any_kind(connection: Connection, ledger: Ledger) -> None:
    names = ["\0", "a\0b", " ", '"\\', "é", "😀", "'; DROP TABLE entity"]
    ledger.publish([create(entity(name), f"1{name}") for name in names])

    results = ledger.publish([update(entity(name), f"1{name}", f"2{name}") for name in names])

    assert kinds(results) == ["Committed"] * len(names)
    assert [heads_of(connection, name) for name in names] == [[f"2{name}"] for name in names]


def test_heads_that_stay_keep_where_they_were_published(
    connection: Connection, ledger: Ledger
) -> None:
    ledger.publish([create(A, "v1")])
    ledger.publish([commit(A, version("v2"), expected=["v1"], heads=["v1", "v2"])])
    ledger.publish([commit(A, version("v3", parents=["v2"]), expected=["v1", "v2"], heads=["v1"])])

    row = connection.execute("SELECT version, published_cursor, changed_cursor FROM entity").get
    history = connection.execute(
        "SELECT version, published_cursor, superseded_cursor FROM version ORDER BY version"
    ).fetchall()
    assert row == ("v1", 1, 3)
    assert history == [("v2", 2, 3), ("v3", 3, 3)]
    assert VersionId("v1") == heads_of(connection, "a")[0]
