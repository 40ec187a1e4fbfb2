"""Work units across the end of a daemon, as a client and a reader of the log meet it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import read_resource
from patchouli.protocol import CREATE, READ, RETRIEVE, UPDATE
from patchouli.server.logs import Log
from patchouli.server.testing import create_memo_home, params, serving, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.server.testing import Peer

IN_UNIT = {"transaction_id": "t"}
CLOSING = {**IN_UNIT, "transaction_state": "commit"}


class Noted(Log):
    """A log that keeps the fields of one event."""

    def __init__(self, event: str) -> None:
        super().__init__("error")
        self._event = event
        self.fields: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        if event == self._event:
            self.fields.append(fields)


REF = {"type": "knowledge", "id": "a"}


@pytest.fixture
def home(folder: Path) -> Path:
    """A home with the policy of the example, whose knowledge may have any shape."""
    home = create_memo_home(folder / "units")
    policy = json.loads(read_resource("patchouli.example.json"))
    policy["entity_types"]["knowledge"]["value_schema"] = True
    (home / "config.json").write_text(json.dumps(policy), "utf-8")
    return home


def made(name: str, text: str = "") -> dict[str, Any]:
    return {"type": "knowledge", "id": name, "value": content(text)}


def revised(text: str) -> dict[str, Any]:
    return {"ref": REF, "value": content(text)}


def content(text: str) -> dict[str, Any]:
    return {"content": {"kind": "text", "text": text}}


async def overtaken(peer: Peer) -> tuple[dict[str, Any], str]:
    """Return the bases of an entity as its unit sees it, and the version that others made of it."""
    root = await peer.result(CREATE, params(made("a", "red apple")))
    bases = {"base_versions": [root["data"]["entity"]["version"]]}
    await peer.result(READ, params({"ref": REF}, **IN_UNIT))
    outside = await peer.result(UPDATE, params(revised("red pear"), **bases))
    return bases, outside["data"]["entity"]["version"]


async def heads(peer: Peer) -> list[Any]:
    read = await peer.result(READ, params({"ref": REF}))
    return read["data"]["variants"]


@pytest.mark.clause("entity.unit.close")
async def test_a_close_is_told_what_became_of_its_version(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        bases, _ = await overtaken(peer)
        closed = await peer.result(UPDATE, params(revised("green apple"), **bases, **CLOSING))
        found = await heads(peer)

    assert found == [closed["data"]["entity"]]
    assert found[0]["value"] == content("green pear")
    assert closed["meta"] == {}


@pytest.mark.clause("entity.unit.states")
async def test_a_published_unit_takes_no_more(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        await peer.result(CREATE, params(made("a"), **CLOSING))
        refused = [
            await peer.error(READ, params({"ref": REF}, **IN_UNIT)),
            await peer.error(RETRIEVE, params({"query": "{}"}, **IN_UNIT)),
            await peer.error(CREATE, params(made("b"), **IN_UNIT)),
            await peer.error(CREATE, params(made("a"), **CLOSING)),
        ]

    for error in refused:
        assert (error["code"], error["data"]) == (-32602, {"reason": "INVALID_REQUEST"})


@pytest.mark.clause("entity.unit.close")
@pytest.mark.clause("entity.unit.conflict")
async def test_a_refused_close_may_be_repeated_and_another_one_is_not_told_why(
    home: Path,
) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        bases, version = await overtaken(peer)
        closing = params(revised("green apple"), **bases, **CLOSING, conflict_strategy="reject")
        refused = [await peer.error(UPDATE, closing) for _ in range(2)]
        other = await peer.error(CREATE, params(made("b"), **CLOSING))
        found = await heads(peer)

    conflicts = [{"ref": REF, "current_versions": [version]}]
    for error in refused:
        assert error["code"] == -32004
        assert error["data"] == {"reason": "VERSION_CONFLICT", "conflicts": conflicts}
    assert (other["code"], other["data"]) == (-32602, {"reason": "INVALID_REQUEST"})
    assert [variant["version"] for variant in found] == [version]


@pytest.mark.clause("entity.unit.states")
@pytest.mark.clause("entity.unit.conflict")
async def test_a_unit_that_was_refused_is_discarded_at_the_next_start(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        bases, version = await overtaken(peer)
        closing = params(revised("green apple"), **bases, **CLOSING, conflict_strategy="reject")
        refused = await peer.error(UPDATE, closing)
    log = Noted("units.finished")
    async with serving(settings_of(home), log=log) as served, await served.connect() as peer:
        expired = await peer.error(UPDATE, closing)
        found = await heads(peer)

    assert (refused["code"], refused["data"]["reason"]) == (-32004, "VERSION_CONFLICT")
    assert (expired["code"], expired["data"]) == (-32011, {"reason": "WORK_UNIT_EXPIRED"})
    assert [variant["version"] for variant in found] == [version]
    assert log.fields == [{"published": 0, "discarded": 1}]
