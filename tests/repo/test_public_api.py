"""The public names and signatures of each package, held against its `tests/public_api.txt`.

A difference is a decision: run with PATCHOULI_WRITE_PUBLIC_API=1 to write the files anew, and
explain the diff in the change.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NewType, get_args

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def described(name: str, value: object) -> Iterator[str]:
    """Yield what a user of `name` relies on: its kind, its signature, its public members."""
    if isinstance(value, NewType):
        yield f"{name} = NewType({value.__supertype__.__name__})"
    elif inspect.isclass(value):
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        yield from (f"    {line}" for line in members(value))
    elif inspect.isfunction(value) or inspect.isbuiltin(value):
        yield f"{name}{inspect.signature(value)}"
    elif arguments := get_args(value):
        yield f"{name} = {' | '.join(getattr(a, '__name__', str(a)) for a in arguments)}"
    elif isinstance(value, str | int | float | tuple | frozenset) and len(repr(value)) < 200:
        yield f"{name} = {sorted(value) if isinstance(value, frozenset) else value!r}"
    else:
        yield f"{name}: {type(value).__name__.lstrip('_')}"


def members(value: type) -> Iterator[str]:
    if issubclass(value, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in value)
        return
    annotations = vars(value).get("__annotations__", {})
    fields = {name for name in annotations if not name.startswith("_") and name != "model_config"}
    yield from (f"{name}: {annotations[name]}" for name in annotations if name in fields)
    if not fields and inspect.isfunction(made := vars(value).get("__init__")):
        yield f"__init__{inspect.signature(made)}"
    for name, found in sorted(vars(value).items()):
        if name.startswith(("_", "test_")) or name in fields:
            continue  # cases of a suite are run, not called
        if isinstance(found, property):
            yield f"{name}: property"
        elif callable(found) or isinstance(found, classmethod | staticmethod):
            yield f"{name}{signature_of(getattr(value, name))}"


def signature_of(found: object) -> str:
    assert callable(found)
    try:
        return str(inspect.signature(found))
    except (TypeError, ValueError):  # a nested class, or one that does not tell
        return ""


def import_package(package: str) -> ModuleType:
    return importlib.import_module(f"patchouli.{package.replace('-', '_')}")


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_and_signatures_are_those_on_record(package: str) -> None:
    module = import_package(package)
    record = ROOT / "packages" / package / "tests" / "public_api.txt"

    names = getattr(module, "__all__", [])
    text = "".join(f"{line}\n" for name in names for line in described(name, getattr(module, name)))
    if os.environ.get("PATCHOULI_WRITE_PUBLIC_API") == "1":
        record.write_text(text, encoding="utf-8")

    assert text == record.read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_sorted_and_nothing_else_is_exported(package: str) -> None:
    module = import_package(package)
    names: list[str] = list(getattr(module, "__all__", []))
    submodules = {path.stem for path in Path(str(module.__file__)).parent.iterdir()}

    exported = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "annotations" and not inspect.ismodule(value)
        if name not in submodules or name in names
    }

    # Constants first, then classes, then functions, as the linter sorts them.
    assert names == sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert len(set(names)) == len(names)
    if not hasattr(module, "__getattr__"):  # names that are loaded when asked for
        assert set(names) == exported
