"""Random concurrent edits: nothing is lost, nothing is there twice, all end with the same.

Writers work at once, each on what it last saw, immediately or for a while in a unit of its own.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchouli.backend import Engine, load_policy
from patchouli.protocol import (
    CreateData,
    CreateParams,
    ReadData,
    ReadParams,
    Ref,
    UpdateData,
    UpdateParams,
)
from patchouli.provider import SystemIds
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage
from patchouli.provider_sqlite import SqliteProvider

REF = Ref(type="memo", id="a")
WRITERS = 4
FIRST_LETTER = 0x4E00  # one letter for each insertion: whether it is there, and how often, is plain


@dataclass
class Writer:
    """A client that edits what it last saw, however old that is."""

    bases: list[str] = field(default_factory=list)
    text: str = ""
    mark: int = 0
    unit: str | None = None


STEP = st.fixed_dictionaries(
    {
        "writer": st.integers(0, WRITERS - 1),
        "refresh": st.sampled_from(["no", "no", "one", "all"]),
        "edit": st.sampled_from(["insert", "insert", "delete", "delete", "mark", "nothing"]),
        # Mostly small, so that writers meet at one place and arrive at equal texts.
        "place": st.integers(0, 2) | st.integers(0, 1000),
        "strategy": st.sampled_from(["merge", "merge", "merge", "mvcc"]),
        "together": st.booleans(),
        "unit": st.sampled_from(["as it is", "as it is", "begin", "close"]),
    }
)


class World:
    """An engine, its writers, and what must be in the text in the end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inserted: set[str] = set()
        self.deleted: set[str] = set()
        self.units = 0

    async def run(self, steps: list[dict[str, Any]]) -> None:
        made = await self.engine.create(
            CreateParams(meta={"team": "t"}, data=CreateData(**vars_of(REF), value=memo("", 0)))
        )
        self.writers = [Writer([made.entity.version]) for _ in range(WRITERS)]
        batch: list[Any] = []
        busy: set[int] = set()
        for step in steps:
            if not step["together"] or step["writer"] in busy:
                await asyncio.gather(*batch)
                batch, busy = [], set()
            busy.add(step["writer"])
            batch.append(self._edit(self.writers[step["writer"]], step))
        await asyncio.gather(*batch)
        await asyncio.gather(*(self._close(writer) for writer in self.writers if writer.unit))

    async def heads(self, unit: str | None = None) -> list[tuple[str, Any]]:
        meta: Any = {"team": "t"} if unit is None else {"team": "t", "unit": unit}
        found = await self.engine.read(ReadParams(meta=meta, data=ReadData(ref=REF)))
        return [(head.version, json.loads(head.value_json or "")) for head in found.variants]

    async def update(
        self, bases: list[str], value: Any, strategy: str, **meta: Any
    ) -> tuple[str, Any]:
        meta = {"team": "t", "base_versions": bases, "strategy": strategy, **meta}
        data = UpdateData(ref=REF, value=value)
        accepted = (await self.engine.update(UpdateParams(meta=meta, data=data))).entity
        return accepted.version, json.loads(accepted.value_json or "")

    async def _edit(self, writer: Writer, step: dict[str, Any]) -> None:
        if step["unit"] == "begin" and writer.unit is None:
            self.units += 1
            writer.unit = f"u{self.units}"
        if step["refresh"] != "no":
            heads = await self.heads(writer.unit)
            version, value = heads[step["place"] % len(heads)]
            writer.text, writer.mark = value["text"], value["mark"]
            # To name a head whose text it did not read would be to delete what only that one has.
            same = [name for name, other in heads if other["text"] == writer.text]
            writer.bases = same if step["refresh"] == "all" else [version]
        place = step["place"] % (len(writer.text) + 1)
        if step["edit"] == "insert":
            letter = chr(FIRST_LETTER + len(self.inserted))
            self.inserted.add(letter)
            writer.text = writer.text[:place] + letter + writer.text[place:]
        elif step["edit"] == "delete" and writer.text:
            place %= len(writer.text)
            self.deleted.add(writer.text[place])
            writer.text = writer.text[:place] + writer.text[place + 1 :]
        elif step["edit"] == "mark":
            writer.mark = step["place"] % 3
        await self._write(writer, step["strategy"], is_closing=step["unit"] == "close")

    async def _write(self, writer: Writer, strategy: str, *, is_closing: bool) -> None:
        meta = {} if writer.unit is None else {"unit": writer.unit}
        if is_closing and writer.unit is not None:
            meta["state"] = "done"
            writer.unit = None
        version, value = await self.update(
            writer.bases, memo(writer.text, writer.mark), strategy, **meta
        )
        writer.bases, writer.text, writer.mark = [version], value["text"], value["mark"]

    async def _close(self, writer: Writer) -> None:
        await self._write(writer, "merge", is_closing=True)

    async def require_nothing_lost(self) -> None:
        """Merge all heads by an update that changes nothing, and look at what there is."""
        version, value = (await self.heads())[0]
        await self.update([version], value, "merge")
        expected = sorted(self.inserted - self.deleted)
        texts = [value["text"] for _, value in await self.heads()]
        for text in texts:
            assert sorted(text) == expected
        assert len(set(texts)) == 1


def memo(text: str, mark: int) -> Any:
    return {"text": text, "mark": mark}


def vars_of(ref: Ref) -> dict[str, str]:
    return {"type": ref.type, "id": ref.id}


async def live(provider: Any, clock: Any, policy: Any, steps: list[dict[str, Any]]) -> None:
    engine = await Engine.start(
        load_policy(json.dumps(policy)), provider, clock=clock, ids=SystemIds()
    )
    try:
        world = World(engine)
        await world.run(steps)
        await world.require_nothing_lost()
    finally:
        await engine.shutdown()


@given(steps=st.lists(STEP, min_size=1, max_size=25))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_edit_is_lost_and_none_is_there_twice(unit_policy, steps):
    clock = ManualClock()
    asyncio.run(live(ModelProvider(ModelStorage(), clock), clock, unit_policy(), steps))


@given(steps=st.lists(STEP, min_size=5, max_size=25))
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.slow
def test_no_edit_is_lost_on_disk(unit_policy, tmp_path_factory, steps):
    clock = ManualClock()
    path = tmp_path_factory.mktemp("db") / "db"
    asyncio.run(live(SqliteProvider(path, clock=clock), clock, unit_policy(), steps))
