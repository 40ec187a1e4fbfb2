"""What a policy may promise beyond plain reads and writes, as a client meets it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import read_resource
from patchouli.protocol import CREATE, DELETE, READ, RETRIEVE, STATUS, UPDATE
from patchouli.server.testing import (
    ARTIFACT_METADATA,
    create_memo_home,
    memo,
    params,
    ref,
    revised,
    serving,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from patchouli.server.testing import Peer

FIELDS = {
    "call": {"pointer": "/call", "schema": True},
    "peer": {"pointer": "/peer", "schema": True},
    "seen": {"pointer": "/ctx/seen", "schema": {"type": "string", "minLength": 1}},
    "unit": {"pointer": "/unit", "schema": True},
    "state": {"pointer": "/state", "schema": True},
}
KEYED = {"idempotency": {"mode": "keyed", "key_by": ["call"]}}
CAUSAL = {
    "consistency": {
        "acquire": {
            "allow_sources": ["authority"],
            "requirements": [{"kind": "causal_after", "token": "seen", "optional": True}],
        }
    }
}
SESSION = {
    "consistency": {
        "sessions": [{"key_by": ["peer"], "guarantees": ["monotonic_reads", "read_your_writes"]}]
    }
}
UNIT = {
    "consistency": {"snapshot": {"mode": "shared", "key_by": ["unit"]}},
    "publication": {
        "mode": "batch",
        "key_by": ["unit"],
        "close_when": {"kind": "marker", "field": "state", "equals": "done"},
        "staging_ttl_ms": 60_000,
        "on_expire": "discard",
    },
}


@pytest.fixture
def home(home: Path) -> Path:
    """A home whose memos keep the promises of the aliases that a request carries."""
    path = home / "config.json"
    policy = json.loads(path.read_text("utf-8"))
    policy["meta_fields"] |= FIELDS
    memos = policy["entity_types"]["memo"]
    plain = memos["fallback"]
    plain["consistency"]["acquire"] = {"allow_sources": ["authority"], "requirements": []}

    def rule(name: str, alias: str, *parts: dict[str, Any]) -> dict[str, Any]:
        behavior = json.loads(json.dumps(plain))
        for part in parts:
            for section, members in part.items():
                behavior[section] |= members
        return {"name": name, "when": {"all_present": [alias]}, "behavior": behavior}

    memos["rules"] = [
        rule("keyed", "call", KEYED, CAUSAL),
        rule("in a session", "peer", SESSION),
        rule("in a unit", "unit", UNIT),
    ]
    for section, members in CAUSAL.items():
        plain[section] |= members
    path.write_text(json.dumps(policy), "utf-8")
    return home


def in_ms(milliseconds: int) -> int:
    return time.time_ns() // 1_000_000 + milliseconds


async def answers(peers: Iterable[Peer]) -> list[dict[str, Any]]:
    return [await peer.response() for peer in peers]


# Shipped files


def knowledge(name: str, text: str) -> dict[str, Any]:
    value = {
        "content": {"kind": "text", "text": text},
        "metadata": {
            **ARTIFACT_METADATA,
            "core": {**ARTIFACT_METADATA["core"], "schema": "patchouli.knowledge@1"},
        },
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "unknown"},
            "ownership": "user",
            "abstraction": "instance",
            "persistence": "long_term",
            "retrieval": ["exact"],
            "actionability": "informational",
        },
    }
    return {"type": "knowledge", "id": name, "value": value}


@pytest.mark.clause("entity.unit")
@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("patchouli.default.json", {}),
        ("patchouli.default.json", {"transaction_id": "t"}),
        ("patchouli.example.json", {}),
        ("patchouli.example.json", {"transaction_id": "t"}),
        ("patterns/eventual.json", {}),
        ("patterns/causal_session.json", {"plugin_route_id": "p"}),
        ("patterns/shared_transaction.json", {"transaction_id": "t"}),
    ],
)
async def test_a_daemon_keeps_what_each_shipped_file_promises(
    folder: Path, name: Any, member: dict[str, Any]
) -> None:
    """Others see a work unit when it is closed and anything else at once, also after restarts."""
    home = create_memo_home(folder / "shipped")
    (home / "config.json").write_bytes(read_resource(name))
    settings = settings_of(home)
    is_unit = "transaction_id" in member
    wanted = {"ref": {"type": "knowledge", "id": "a"}}
    # Whoever is in no unit reads what is published; one pattern has nothing but units.
    is_always_unit = name == "patterns/shared_transaction.json"
    outside, later = (
        ({"transaction_id": "before"}, {"transaction_id": "after"})
        if is_always_unit
        else ({}, {})
        if is_unit
        else (member, member)
    )

    async with serving(settings) as served, await served.connect() as peer:
        made = await peer.result(CREATE, params(knowledge("a", "one"), **member))
    async with serving(settings) as served, await served.connect() as peer:
        own = await peer.result(READ, params(wanted, **member, **made["meta"]))
        if is_unit:
            before = await peer.error(READ, params(wanted, **outside))
            assert before["data"]["reason"] == "NOT_FOUND"
            closing = {**member, "transaction_state": "commit"}
            await peer.result(CREATE, params(knowledge("b", "two"), **closing))
    async with serving(settings) as served, await served.connect() as peer:
        seen = await peer.result(READ, params(wanted, **later, **made["meta"]))

    assert own["data"] == seen["data"]
    assert seen["data"]["variants"] == [made["data"]["entity"]]


# Idempotency


@pytest.mark.clause("entity.repeated")
async def test_a_repetition_gets_the_same_line_on_any_connection_and_after_a_restart(
    home: Path,
) -> None:
    value = {"text": "ä \u0000 窓", "n": [1, 1.0, 2**64 - 1, -0.0], "": None}
    made, changed, gone = params(memo("a", value), call="1"), None, params(ref("a"), call="3")

    async with serving(settings_of(home)) as served, await served.connect() as peer:
        first = await peer.result(CREATE, made)
        base = first["data"]["entity"]["version"]
        changed = params(revised("a", {"text": "b"}), call="2", base_versions=[base])
        second = await peer.result(UPDATE, changed)
        gone["meta"]["base_versions"] = [second["data"]["entity"]["version"]]
        third = await peer.result(DELETE, gone)
        async with await served.connect() as other:
            repeated = await other.result(CREATE, made)
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        later = [
            await peer.result(method, asked)
            for method, asked in ((CREATE, made), (UPDATE, changed), (DELETE, gone))
        ]
        read = await peer.result(READ, params(ref("a")))

    expected = [json.dumps(result) for result in (first, second, third)]
    assert [json.dumps(result) for result in (repeated, *later)] == [expected[0], *expected]
    assert read["data"]["state"] == "deleted"


async def test_a_keyed_answer_looks_like_any_other(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        keyed = await peer.result(CREATE, params(memo("a", {"z": 1, "a": 2.0}), call="1"))
        plain = await peer.result(CREATE, params(memo("b", {"z": 1, "a": 2.0})))
        bases = {"base_versions": [keyed["data"]["entity"]["version"]]}
        keyed_gone = await peer.result(DELETE, params(ref("a"), call="2", **bases))
        bases = {"base_versions": [plain["data"]["entity"]["version"]]}
        plain_gone = await peer.result(DELETE, params(ref("b"), **bases))

    for one, other in ((keyed, plain), (keyed_gone, plain_gone)):
        version = one["data"]["entity"]["version"]
        spelled = json.dumps(other).replace(other["data"]["entity"]["version"], version)
        assert json.dumps(one) == spelled.replace('"id": "b"', '"id": "a"')


@pytest.mark.clause("entity.repeated")
async def test_what_is_wrong_with_a_keyed_mutation_is_told(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        await peer.result(CREATE, params(memo("a"), call="1"))
        taken = await peer.error(CREATE, params(memo("b"), call="1"))
        taken_update = await peer.error(UPDATE, params(revised("a", 1), call="1"))
        unknown = await peer.error(CREATE, params(memo("a"), call="1", ctx={"seen": "unknown"}))
        exists = await peer.error(CREATE, params(memo("a"), call="2"))
        again = await peer.result(CREATE, params(memo("c"), call="2"))

    for error in (taken, taken_update):
        assert (error["code"], error["data"]) == (-32005, {"reason": "IDEMPOTENCY_CONFLICT"})
    assert (unknown["code"], unknown["data"]["reason"]) == (-32009, "OVERLOADED")
    assert (exists["code"], exists["data"]["reason"]) == (-32004, "VERSION_CONFLICT")
    assert again["data"]["entity"]["ref"]["id"] == "c"


# Tokens and waiting


@pytest.mark.clause("entity.observed")
@pytest.mark.parametrize("method", [READ, RETRIEVE, CREATE, UPDATE, DELETE])
async def test_a_request_waits_until_what_it_must_observe_is_published(
    home: Path, method: str
) -> None:
    """A work unit tells the token of a change before it is published."""
    async with (
        serving(settings_of(home)) as served,
        await served.connect() as waiting,
        await served.connect() as other,
    ):
        base = (await other.result(CREATE, params(memo("a"))))["data"]["entity"]["version"]
        staged = await other.result(CREATE, params(memo("b"), unit="u"))
        token = staged["data"]["entity"]["version"]
        data: Any = {
            READ: ref("b"),
            RETRIEVE: {"query": '{"ids":["b"]}'},
            CREATE: memo("c"),
            UPDATE: revised("a", {"text": "u"}),
            DELETE: ref("a"),
        }[method]
        meta = {"ctx": {"seen": token}, "base_versions": [base], "deadline_unix_ms": in_ms(60_000)}
        waiting.send(method, params(data, **meta))
        behind = waiting.send(STATUS, {"meta": {}, "data": {}})
        await other.result(CREATE, params(memo("d")))
        await other.result(CREATE, params(memo("e"), unit="u", state="done"))
        first, second = await answers([waiting, waiting])

    if method == RETRIEVE:  # the one that others may overtake
        first, second = second, first
    assert second["id"] == behind
    assert "error" not in first
    if method == READ:
        assert first["result"]["data"]["variants"] == [staged["data"]["entity"]]
    if method == RETRIEVE:
        assert [hit["variants"] for hit in first["result"]["data"]["hits"]] == [
            [staged["data"]["entity"]]
        ]


@pytest.mark.clause("entity.observed")
async def test_the_token_of_an_answer_can_be_fed_back_as_it_came(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        made = await peer.result(CREATE, params(memo("a")))
        read = await peer.result(READ, params(ref("a"), **made["meta"]))

    assert read["meta"] == made["meta"] == {"ctx": {"seen": made["data"]["entity"]["version"]}}


@pytest.mark.clause("entity.observed")
@pytest.mark.parametrize("method", [READ, RETRIEVE, CREATE, UPDATE, DELETE])
async def test_what_is_never_published_is_not_waited_for_beyond_the_deadline(
    home: Path, method: str
) -> None:
    data: Any = {
        READ: ref("a"),
        RETRIEVE: {"query": "{}"},
        CREATE: memo("c"),
        UPDATE: revised("a", 1),
        DELETE: ref("a"),
    }[method]
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        await peer.result(CREATE, params(memo("a")))
        meta: dict[str, Any] = {"ctx": {"seen": "never"}, "base_versions": ["v"]}
        at_once = await peer.error(method, params(data, **meta))
        later = await peer.error(method, params(data, **meta, deadline_unix_ms=in_ms(50)))

    for error in (at_once, later):
        assert error["code"] == -32009
        assert error["data"] == {"reason": "OVERLOADED", "retryable": True}


async def test_a_stop_does_not_wait_for_what_waits(home: Path) -> None:
    settings = settings_of(home, drain_ms=60_000)
    async with serving(settings) as served:
        peers = [await served.connect() for _ in range(3)]
        meta: dict[str, Any] = {"ctx": {"seen": "never"}, "deadline_unix_ms": in_ms(600_000)}
        asked = ((READ, ref("a")), (CREATE, memo("c")), (DELETE, ref("a")))
        for peer, (method, data) in zip(peers, asked, strict=True):
            peer.send(method, params(data, **meta))
            await peer.drain()
        async with await served.connect() as other:
            # What came before on other connections was begun when this is answered.
            await other.result(CREATE, params(memo("a")))
            await other.result(STATUS, {"meta": {}, "data": {}})
    told = await answers(peers)
    for peer in peers:
        await peer.close()

    assert [answer["error"]["data"]["reason"] for answer in told] == ["OVERLOADED"] * 3


async def test_a_peer_that_is_gone_holds_nothing_while_one_that_listens_is_told(
    home: Path,
) -> None:
    meta: dict[str, Any] = {"ctx": {"seen": "never"}, "deadline_unix_ms": in_ms(600_000)}
    async with serving(settings_of(home, drain_ms=60_000, boundary_ms=5)) as served:
        gone, silent = await served.connect(), await served.connect()
        for peer in (gone, silent):
            peer.send(READ, params(ref("a"), **meta))
            await peer.drain()
        silent.send_eof()
        await gone.close()
        async with await served.connect() as other, asyncio.timeout(5):
            status = {"meta": {}, "data": {}}
            while (await other.result(STATUS, status))["data"]["active_connections"] > 2:
                await other.error(READ, params(ref("a")))
    (answer,) = await answers([silent])
    await silent.close()

    assert answer["error"]["data"]["reason"] == "OVERLOADED"


# Sessions


async def test_a_session_goes_on_over_connections_and_restarts(home: Path) -> None:
    async with serving(settings_of(home)) as served:
        async with await served.connect() as peer:
            made = await peer.result(CREATE, params(memo("a"), peer="p"))
        async with await served.connect() as peer:
            read = await peer.result(READ, params(ref("a"), peer="p"))
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        later = await peer.result(READ, params(ref("a"), peer="p"))
        found = await peer.result(RETRIEVE, params({"query": "{}", "types": ["memo"]}, peer="p"))

    assert read["data"]["variants"] == later["data"]["variants"] == [made["data"]["entity"]]
    assert len(found["data"]["hits"]) == 1
