"""Work units across the end of a daemon, as a client and a reader of the log meet it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from patchouli.backend import read_resource
from patchouli.protocol import CREATE, READ, UPDATE
from patchouli.server.logs import Log
from patchouli.server.testing import create_memo_home, params, serving, settings_of

if TYPE_CHECKING:
    from pathlib import Path

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


async def test_a_unit_that_was_sealed_and_refused_is_discarded_at_the_next_start(
    folder: Path,
) -> None:
    home = create_memo_home(folder / "units")
    policy = json.loads(read_resource("patchouli.example.json"))
    policy["entity_types"]["knowledge"]["value_schema"] = True
    (home / "config.json").write_text(json.dumps(policy), "utf-8")
    made = {"type": "knowledge", "id": "a", "value": {"content": {"kind": "text", "text": "1"}}}
    ref = {"type": "knowledge", "id": "a"}

    def revised(text: str) -> dict[str, Any]:
        return {"ref": ref, "value": {"content": {"kind": "text", "text": text}}}

    async with serving(settings_of(home)) as served, await served.connect() as peer:
        root = await peer.result(CREATE, params(made))
        bases = {"base_versions": [root["data"]["entity"]["version"]]}
        await peer.result(READ, params({"ref": ref}, **IN_UNIT))
        outside = await peer.result(UPDATE, params(revised("2"), **bases))
        closing = params(revised("3"), **bases, **CLOSING, conflict_strategy="reject")
        refused = await peer.error(UPDATE, closing)
    log = Noted("units.finished")
    async with serving(settings_of(home), log=log) as served, await served.connect() as peer:
        expired = await peer.error(UPDATE, closing)
        read = await peer.result(READ, params({"ref": ref}))

    version = outside["data"]["entity"]["version"]
    assert (refused["code"], refused["data"]) == (
        -32004,
        {"reason": "VERSION_CONFLICT", "conflicts": [{"ref": ref, "current_versions": [version]}]},
    )
    assert (expired["code"], expired["data"]["reason"]) == (-32011, "WORK_UNIT_EXPIRED")
    assert [variant["version"] for variant in read["data"]["variants"]] == [version]
    assert log.fields == [{"published": 0, "discarded": 1}]
