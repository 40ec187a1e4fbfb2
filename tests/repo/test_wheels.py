"""What is built names no place of the machine that built it."""

from __future__ import annotations

import importlib
import os
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEELS = sorted((ROOT / "dist").glob("*.whl"))
CARGO = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")).resolve()
PLACES = [str(place) for place in (ROOT, Path.home(), CARGO) if place != Path("/")]


def places_in(content: bytes) -> list[str]:
    return [place for place in PLACES if f"{place}{os.sep}".encode() in content]


def test_the_installed_extension_names_no_place_of_this_machine() -> None:
    core = importlib.import_module("patchouli.automerge._core")
    assert core.__file__ is not None

    assert places_in(Path(core.__file__).read_bytes()) == []


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)
def test_a_built_wheel_names_no_place_of_this_machine(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name: places_in(archive.read(name)) for name in archive.namelist()}

    assert {name: places for name, places in found.items() if places} == {}
