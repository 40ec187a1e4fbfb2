"""The engine's example in the README runs as it stands."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from patchouli.backend import read_resource
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


async def test_the_example_of_the_engine_runs(tmp_path, monkeypatch):
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
        if "Engine.start" in block
    ]
    policy = json.loads(read_resource("patchouli.default.json"))
    policy["entity_types"]["knowledge"]["value_schema"] = True
    (tmp_path / "config.json").write_text(json.dumps(policy), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "Path": Path,
        "provider": ModelProvider(ModelStorage(), ManualClock()),
        "value": {"content": {"kind": "text", "text": "x"}},
    }

    exec(f"async def example():\n{textwrap.indent(code, '    ')}\n    return made", names)  # noqa: S102 -- it is our own README
    made = await names["example"]()

    assert made.entity.value_json == '{"content":{"kind":"text","text":"x"}}'
