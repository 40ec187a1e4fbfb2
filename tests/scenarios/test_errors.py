"""Every reason for which the engine refuses, over the socket, with its code and its data.

A row says what is asked of a home in which `k` is there, `gone` is deleted and `two` has two heads;
nothing that is refused changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from patchouli.protocol import CREATE, DELETE, DOWNLOAD_CHUNK, READ, RETRIEVE, SUBSCRIBE, UPDATE

from tests.scenarios import policies
from tests.scenarios.desk import Desk, Ending, RefusedError, knowledge, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID: Final = (-32602, "INVALID_REQUEST")
NOT_FOUND: Final = (-32003, "NOT_FOUND")
CONFLICT: Final = (-32004, "VERSION_CONFLICT")
TAKEN: Final = (-32005, "IDEMPOTENCY_CONFLICT")
LATE: Final = (-32007, "DEADLINE_EXCEEDED")
OVERLOADED: Final = (-32009, "OVERLOADED")
CURSOR_EXPIRED: Final = (-32010, "CURSOR_EXPIRED")
WORK_UNIT_EXPIRED: Final = (-32011, "WORK_UNIT_EXPIRED")

U: Final = {"transaction_id": "u-1"}
CLOSE: Final = {**U, "transaction_state": "commit"}
K: Final = {"ref": {"type": "knowledge", "id": "k"}}
UNKNOWN: Final = {"causal_token": "unknown"}
ME: Final = {"plugin_route_id": "me"}

# An error looks the same after a restart.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),
    pytest.mark.parametrize("desk", [Ending.NEVER], indirect=True, ids=lambda _: "one run"),
]


def to(name: str, value: Any = None, **more: Any) -> dict[str, Any]:
    """Return the data of a request about an entity."""
    data = {"ref": {"type": "knowledge", "id": name}, **more}
    return data if value is None else {**data, "value": value}


def new(name: str = "new", type_: str = "knowledge", value: Any = None) -> dict[str, Any]:
    """Return the data of a create."""
    return {"type": type_, "id": name, "value": knowledge("a") if value is None else value}


@dataclass(frozen=True)
class Row:
    """A request that is refused; `heads` names the entity whose heads the conflict tells."""

    name: str
    method: str
    data: dict[str, Any]
    refused: tuple[int, str]
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    heads: str | None = None


def one_of(policy: dict[str, Any], **schemas: Any) -> dict[str, Any]:
    """Return a policy whose fields admit more, so that the engine itself has to refuse."""
    for name, schema in schemas.items():
        policy["meta_fields"][name]["schema"] = schema
    return policy


ROWS: Final = [
    *(
        Row(f"deadline {bad!r}", READ, K, INVALID, {"deadline_unix_ms": bad})
        for bad in (None, 1.5, -1, "1")
    ),
    Row("params", CREATE, {"type": "knowledge"}, INVALID),
    Row("unknown type", CREATE, new(type_="nothing"), INVALID),
    Row("alias against its schema", READ, K, INVALID, {"channel_id": ""}),
    Row("scope not bound", READ, K, INVALID, {"user_id": ...}),
    Row("value against its schema", CREATE, new(value={"content": 1}), INVALID),
    Row("value before not found", UPDATE, to("nobody", {"content": 1}), INVALID),
    Row("unknown strategy", UPDATE, to("k", knowledge("b")), INVALID, {"conflict_strategy": "x"}),
    Row("no bases", UPDATE, to("k", knowledge("b")), INVALID),
    Row("no bases to delete", DELETE, K, INVALID),
    *(
        Row(f"bases {bad!r}", UPDATE, to("k", knowledge("b")), INVALID, {"base_versions": bad})
        for bad in ("v", {}, [], [1], ["v", "v"], None)
    ),
    *(
        Row(f"limit {bad!r}", RETRIEVE, {"query": "{}", "limit": bad}, INVALID)
        for bad in (0, 101, None)
    ),
    Row("no types", RETRIEVE, {"query": "{}", "types": []}, INVALID),
    Row("unknown types", RETRIEVE, {"query": "{}", "types": ["nothing"]}, INVALID),
    *(
        Row(f"query {bad}", RETRIEVE, {"query": bad}, INVALID)
        for bad in (
            "apple",
            "[]",
            '{"text": " "}',
            '{"text": null}',
            '{"ids": []}',
            '{"ids": ["a", "a"]}',
            '{"where": {"a": 1}}',
            '{"where": {"/a": {"$regex": "x"}}}',
            '{"order": "relevance"}',
            '{"cursor": "x"}',
            '{"other": 1}',
        )
    ),
    Row("cursor of changes", SUBSCRIBE, {"after_cursor": "x"}, INVALID),
    Row("read nobody", READ, to("nobody"), NOT_FOUND),
    Row("update nobody", UPDATE, to("nobody", knowledge("b")), NOT_FOUND),
    Row("delete nobody", DELETE, to("nobody"), NOT_FOUND),
    Row(
        "download nobody", DOWNLOAD_CHUNK, {"id": "nobody", "offset": 0, "max_bytes": 1}, NOT_FOUND
    ),
    Row("create what is there", CREATE, new("k"), CONFLICT, heads="k"),
    Row("create what is deleted", CREATE, new("gone"), CONFLICT, heads="gone"),
    Row("create what is conflicted", CREATE, new("two"), CONFLICT, heads="two"),
    Row(
        "unknown base",
        UPDATE,
        to("two", knowledge("b")),
        CONFLICT,
        {"base_versions": ["v"]},
        heads="two",
    ),
    Row("unknown base to delete", DELETE, K, CONFLICT, {"base_versions": ["v"]}, heads="k"),
    Row("late", READ, K, LATE, {"deadline_unix_ms": 0}),
    Row("late create", CREATE, new(), LATE, {"deadline_unix_ms": 1}),
    Row("late retrieval", RETRIEVE, {"query": "{}"}, LATE, {"deadline_unix_ms": 1}),
    Row("late subscription", SUBSCRIBE, {}, LATE, {"deadline_unix_ms": 1}),
    Row("cursor of the original", SUBSCRIBE, {"after_cursor": "7"}, CURSOR_EXPIRED),
]


async def furnish(desk: Desk, **meta: Any) -> None:
    """Make what the rows are about."""
    await desk.create(knowledge("k"), "k", **meta)
    gone = await desk.create(knowledge("gone"), "gone", **meta)
    await desk.delete(gone, "gone", **meta)
    two = await desk.create(knowledge("two"), "two", **meta)
    for text in ("one", "other"):
        await desk.update(two, knowledge(text), "two", conflict_strategy="mvcc", **meta)


def check(error: RefusedError, refused: tuple[int, str], **data: Any) -> None:
    """Return if it is this error with this data and no other."""
    assert (error.code, error.reason) == refused
    told = {name: value for name, value in error.data.items() if name != "retryable"}
    assert told == {"reason": refused[1], **data}


async def test_every_row_is_refused_as_it_says_and_changes_nothing(desk: Desk) -> None:
    desk.use(
        one_of(
            policies.default(),
            conflict_strategy={"type": "string"},
            base_versions=True,
        )
    )
    await furnish(desk)
    before = await desk.subscribe()

    for row in ROWS:
        error = await refusal(desk.call(row.method, row.data, **row.meta))
        data: dict[str, Any] = {}
        if row.heads is not None:
            data["current_versions"] = sorted((await desk.read(row.heads)).values)
        try:
            check(error, row.refused, **data)
        except AssertionError as failure:
            failure.add_note(row.name)
            raise
    assert await desk.subscribe() == before


async def test_what_otherwise_reject_refuses(desk: Desk) -> None:
    policy = policies.default()
    for behavior in policies.behaviors(policy, "knowledge"):
        behavior["conflict"]["otherwise"] = "reject"
    desk.use(policies.default())
    made = await desk.create(knowledge("red apple"), "k")
    head = await desk.update(made, knowledge("red pear"), "k")
    made_too = await desk.create(knowledge("a"), "dead")
    tombstone = await desk.delete(made_too, "dead")
    await desk.restart()
    desk.use(policy)

    other = knowledge({"kind": "structured", "value": 1})
    for request in (
        desk.update(made, other, "k"),  # nothing merges it with the head
        desk.delete(made, "k"),
    ):
        check(await refusal(request), CONFLICT, current_versions=[head.version])
    error = await refusal(desk.update(made_too, knowledge("b"), "dead"))
    check(error, CONFLICT, current_versions=[tombstone.version])


async def test_what_units_refuse(desk: Desk, pass_time: Callable[[int], None]) -> None:
    desk.use(policies.short_lived(policies.default()))
    made = await desk.create(knowledge("a"), "a")
    await desk.create(knowledge("b"), "b", **CLOSE)
    for request in (
        desk.read("b", **U),
        desk.create(knowledge("c"), "c", **U),
        desk.update(made, knowledge("c"), "a", **CLOSE),
        desk.find({}, types=["knowledge"], **U),
    ):
        check(await refusal(request), INVALID)

    drifting = {"transaction_id": "u-2", "conflict_strategy": "reject"}
    await desk.update(made, knowledge("in"), "a", **drifting)
    outside = await desk.update(made, knowledge("out"), "a")
    close = desk.create(knowledge("d"), "d", **drifting, transaction_state="commit")
    conflict = {"ref": {"type": "knowledge", "id": "a"}, "current_versions": [outside.version]}
    check(await refusal(close), CONFLICT, conflicts=[conflict])
    check(await refusal(desk.read("a", **drifting)), INVALID)

    await desk.read("a", transaction_id="u-3")
    pass_time(policies.TTL_MS)
    for request in (
        desk.read("a", transaction_id="u-3"),
        desk.create(knowledge("e"), "e", transaction_id="u-3"),
        desk.create(knowledge("e"), "e", **drifting),
        desk.find({}, types=["knowledge"], transaction_id="u-3"),
    ):
        check(await refusal(request), WORK_UNIT_EXPIRED)


async def test_what_identities_refuse(desk: Desk) -> None:
    desk.use(policies.keyed(policies.default()))
    made = await desk.create(knowledge("a"), call="1")

    check(await refusal(desk.create(knowledge("b"), "b")), INVALID)
    assert (await desk.read()).values == {made.version: knowledge("a")}, "a read needs no key"
    for request in (
        desk.create(knowledge("b"), call="1"),
        desk.create(knowledge("a"), "other", call="1"),
        desk.update(made, knowledge("a"), call="1"),
        desk.delete(made, call="1"),
    ):
        check(await refusal(request), TAKEN)
    await desk.create(knowledge("u"), "u", call="2", **U)
    for meta in ({}, {"transaction_id": "u-2"}):
        check(await refusal(desk.create(knowledge("u"), "u", call="2", **meta)), TAKEN)


async def test_a_unit_of_another_policy_is_invalid_with_a_key_as_well(desk: Desk) -> None:
    policy = policies.keyed(policies.default())
    desk.use(policies.short_lived(policy, "knowledge_relation"))
    await desk.create(knowledge("a"), call="1", **U)

    check(await refusal(desk.read(type_="knowledge_relation", **U)), INVALID)


async def test_what_tokens_and_sessions_refuse(desk: Desk) -> None:
    policy = one_of(policies.causal(), causal_token=True)
    desk.use(policy)
    await desk.create(knowledge("a"), **ME)

    check(await refusal(desk.read()), INVALID)
    check(await refusal(desk.read(causal_token=5, **ME)), INVALID)
    for request in (
        desk.read(**UNKNOWN, **ME),
        desk.create(knowledge("b"), "b", **UNKNOWN, **ME),
        desk.find({}, **UNKNOWN, **ME),
    ):
        check(await refusal(request), OVERLOADED)
    await desk.restart()
    for behavior in policies.behaviors(policy):
        for requirement in behavior["consistency"]["acquire"]["requirements"]:
            requirement["optional"] = False
    desk.use(policy)
    check(await refusal(desk.read(**ME)), INVALID)


async def test_what_positions_refuse(desk: Desk, pass_time: Callable[[int], None]) -> None:
    made = await desk.create(knowledge("a"))
    first = await desk.subscribe()
    head = await desk.update(made, knowledge("b"))
    incarnation, _, number = first.rpartition(".")

    for cursor in (f"{incarnation}.{int(number) + 9}", f"{incarnation[::-1]}x.1"):
        check(await refusal(desk.subscribe(cursor)), CURSOR_EXPIRED)
    pass_time(604_800_001)
    await desk.update(head, knowledge("c"))
    for cursor in (first, "0"):
        check(await refusal(desk.subscribe(cursor)), CURSOR_EXPIRED)
