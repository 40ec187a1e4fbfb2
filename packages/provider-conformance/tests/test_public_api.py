"""The public names and signatures of the package, held against `public_api.txt`.

A difference is a decision: run with PATCHOULI_WRITE_PUBLIC_API=1 to write the file anew, and
explain the diff in the change.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NewType, Protocol, get_args, get_origin

import patchouli.provider_conformance as package
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine

RECORD = Path(__file__).with_name("public_api.txt")


def described(name: str, value: object) -> list[str]:
    if name.endswith("Conformance"):
        return [f"class {name}(ProviderSuite)"]  # its cases are not names that anyone calls
    if isinstance(value, settings):
        return [f"{name} = settings"]
    if inspect.isclass(value) and issubclass(value, RuleBasedStateMachine):
        hooks = ["abandon", "can_abandon", "discard", "open_provider"]
        return [f"class {name}", *(f"    {hook}" for hook in hooks if hasattr(value, hook))]
    if isinstance(value, NewType):
        return [f"{name} = NewType({value.__supertype__.__name__})"]
    if inspect.isclass(value):
        return described_class(name, value)
    if inspect.isfunction(value):
        return [f"{name}{inspect.signature(value)}"]
    if get_origin(value) is Callable:
        return [f"{name} = Callable"]
    if members := get_args(value):
        return [f"{name} = {' | '.join(getattr(m, '__name__', str(m)) for m in members)}"]
    return [f"{name} = {value!r}"]


def described_class(name: str, value: type) -> list[str]:
    bases = ", ".join(base.__name__ for base in value.__bases__)
    lines = [f"class {name}({bases})"]
    if issubclass(value, enum.Enum):
        return lines + [f"    {member.name} = {member.value!r}" for member in value]
    if dataclasses.is_dataclass(value):
        lines += [f"    {field_line(field)}" for field in dataclasses.fields(value)]
    fields = (
        {f.name for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    )
    for member, found in sorted(vars(value).items()):
        if member in fields or (member.startswith("_") and member != "__init__"):
            continue
        if member == "__init__" and value.__bases__ == (Protocol,):
            continue  # made by typing, and not the same in every Python
        if inspect.isfunction(found) and not (member == "__init__" and fields):
            lines.append(f"    {member}{inspect.signature(found)}")
        elif isinstance(found, property):
            lines.append(f"    {member}: property")
        elif isinstance(found, str | bool):
            lines.append(f"    {member} = {found!r}")
    return lines


def field_line(field: dataclasses.Field[object]) -> str:
    has_default = field.default is not dataclasses.MISSING
    return f"{field.name}: {field.type}" + (f" = {field.default!r}" if has_default else "")


def test_the_public_names_and_signatures_are_those_on_record() -> None:
    lines = [line for name in package.__all__ for line in described(name, getattr(package, name))]
    text = "\n".join(lines) + "\n"
    if os.environ.get("PATCHOULI_WRITE_PUBLIC_API") == "1":
        RECORD.write_text(text, encoding="utf-8")

    assert text == RECORD.read_text(encoding="utf-8")


def test_all_public_names_are_listed_and_sorted() -> None:
    homes: dict[str, str] = vars(package)["_HOMES"]

    assert set(package.__all__) == set(homes)
    constants = [name for name in package.__all__ if name.isupper()]
    classes = [n for n in package.__all__ if n[0].isupper() and not n.isupper()]
    functions = [name for name in package.__all__ if name[0].islower()]
    assert package.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Telepathy"):
        getattr(package, "Telepathy")  # noqa: B009 - a name that no type checker would let pass


def test_importing_the_plugin_loads_nothing_of_the_suite() -> None:
    """pytest loads the plugin in every project that has the distribution installed."""
    code = """
import sys
import patchouli.provider_conformance.plugin
print(sorted(m for m in sys.modules if m.startswith(("patchouli", "hypothesis"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(
        ["patchouli", "patchouli.provider_conformance", "patchouli.provider_conformance.plugin"]
    )
