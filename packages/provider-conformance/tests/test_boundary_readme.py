"""The example in the README of the boundary does what the README says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from patchouli.provider import Committed, Raced, SystemClock, SystemIds
from patchouli.provider_conformance import ModelProvider, ModelStorage
from patchouli.provider_conformance.asking import head_ids
from patchouli.provider_conformance.builders import FOREVER, create, entity

README = Path(__file__).parents[2] / "provider" / "README.md"


def example() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    body = textwrap.indent(code, "    ")
    names: dict[str, Any] = {}
    exec(f"async def run(provider, key, ids, clock):\n{body}\n    return outcome", names)  # noqa: S102 - it is our own page
    return names["run"]


async def test_the_example_replaces_a_head() -> None:
    provider = ModelProvider(ModelStorage(), SystemClock())
    await provider.initialize(FOREVER)
    await provider.commit(create(entity("a")))

    outcome = await example()(provider, entity("a"), SystemIds(), SystemClock())

    assert isinstance(outcome, Committed)
    assert await head_ids(provider, entity("a")) != ["v1"]


async def test_the_example_takes_a_lost_race_as_a_value() -> None:
    class Overtaken(ModelProvider):
        async def commit(self, commit: Any) -> Any:
            await super().commit(create(entity("a"), "winner"))
            return await super().commit(commit)

    provider = Overtaken(ModelStorage(), SystemClock())
    await provider.initialize(FOREVER)

    outcome = await example()(provider, entity("a"), SystemIds(), SystemClock())

    assert isinstance(outcome, Raced)
    assert [head.id for head in outcome.heads] == ["winner"]
