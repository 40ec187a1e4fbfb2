"""The public names and signatures of the package, held against `public_api.txt`.

A difference is a decision: run with PATCHOULI_WRITE_PUBLIC_API=1 to write the file anew, and
explain the diff in the change.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import os
from pathlib import Path
from typing import NewType, Protocol, get_args

import patchouli.provider_sqlite as package

RECORD = Path(__file__).with_name("public_api.txt")


def described(name: str, value: object) -> list[str]:
    if isinstance(value, NewType):
        return [f"{name} = NewType({value.__supertype__.__name__})"]
    if inspect.isclass(value):
        return described_class(name, value)
    if inspect.isfunction(value):
        return [f"{name}{inspect.signature(value)}"]
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
    exported = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }

    assert set(package.__all__) == exported
    constants = [name for name in package.__all__ if name.isupper()]
    classes = [n for n in package.__all__ if n[0].isupper() and not n.isupper()]
    functions = [name for name in package.__all__ if name[0].islower()]
    assert package.__all__ == sorted(constants) + sorted(classes) + sorted(functions)
