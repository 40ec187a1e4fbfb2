"""The code of the guide and of the README runs as it stands."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from patchouli.harness import Kernel
from patchouli.memory_service import (
    CONSUMER_CURSORS,
    CallMeta,
    MemoryRequest,
    MemoryService,
    MemoryServiceConfig,
    RouteCall,
    Source,
    memory_service,
)

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "write-a-memory-plugin.md"
README = Path(__file__).parents[1] / "README.md"

META = CallMeta(source=Source(type="chat", id="desk"), scope="garden")


def blocks(path: Path, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text("utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def guide() -> tuple[dict[str, Any], str]:
    """Run every block in order; return the names and what was printed."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks(GUIDE):
            exec(compile(block, GUIDE.name, "exec"), names)  # noqa: S102 - our own text
    return names, printed.getvalue()


def test_the_first_plugin_has_twenty_lines() -> None:
    lines = blocks(GUIDE)[0].splitlines()

    assert len([line for line in lines if line.strip()]) <= 20


def test_the_program_prints_what_the_guide_says(guide: tuple[dict[str, Any], str]) -> None:
    assert [guide[1]] == blocks(GUIDE, "text")


def test_the_policy_is_one(guide: tuple[dict[str, Any], str]) -> None:
    config = MemoryServiceConfig.parse(guide[0]["policy"])

    assert config.retrieve_timeout_ms == 2000
    assert config.routing["notebook"].operations == ["retrieve"]


async def test_the_plugin_of_the_host_registers_for_as_long_as_it_runs(
    guide: tuple[dict[str, Any], str], kernel: Kernel
) -> None:
    scope = kernel.root.plugin(guide[0]["NOTEBOOK"])
    await kernel.root.plugin(memory_service())
    await scope
    memory: MemoryService = kernel.root.find("patchouli")
    during = memory.matching(RouteCall(operation="retrieve", meta=META))

    await scope.close()

    assert during == ("notebook",)
    assert memory.matching(RouteCall(operation="retrieve", meta=META)) == ()


async def test_the_reactive_plugin_is_followed_across_subscriptions(
    guide: tuple[dict[str, Any], str], kernel: Kernel, capsys: pytest.CaptureFixture[str]
) -> None:
    names, _ = guide
    await kernel.root.plugin(memory_service())
    memory: MemoryService = kernel.root.find("patchouli")
    memory.register(names["LoudNotebook"]())
    cursors = names["Cursors"]()

    async def note(text: str) -> None:
        (outcome,) = await memory.update(MemoryRequest(meta=META, data={"text": text}))
        assert outcome.ok

    await note("Order seed trays")
    await note("The hose leaks")
    await asyncio.wait_for(names["follow"](memory, META, cursors, 2), 5)
    await note("Prune the pear")
    await asyncio.wait_for(names["follow"](memory, META, cursors, 2), 5)

    assert capsys.readouterr().out.splitlines() == [
        "notebook 1 note 1",
        "notebook 2 note 2",
        "notebook 2 note 2",
        "notebook 3 note 3",
    ]
    assert cursors.saved == {"notebook": "2"}


async def test_positions_on_disk_outlive_the_host(
    guide: tuple[dict[str, Any], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, _ = guide
    notebook = names["LoudNotebook"]()
    notebook.notes["garden"] = ["Order seed trays", "The hose leaks", "Prune the pear"]

    for _ in range(2):
        await asyncio.wait_for(names["follow_on_disk"](tmp_path / "db", notebook, META, 2), 5)

    assert capsys.readouterr().out.splitlines() == [
        "notebook 1 note 1",
        "notebook 2 note 2",
        "notebook 2 note 2",
        "notebook 3 note 3",
    ]


async def test_who_waits_for_a_domain_is_named(kernel: Kernel) -> None:
    kernel.root.plugin(CONSUMER_CURSORS)
    await kernel.settle()

    assert [one.missing for one in kernel.pending()] == [("storageDomain",)]


def test_the_readme_runs() -> None:
    (block,) = blocks(README)
    (expected,) = blocks(README, "text")
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        exec(compile(block, README.name, "exec"), {})  # noqa: S102 - our own text

    assert printed.getvalue() == expected
