"""The public names and signatures of the package, held against `public_api.txt`.

A difference is a decision: run with PATCHOULI_WRITE_PUBLIC_API=1 to write the file anew, and
explain the diff in the change.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path

import patchouli.automerge as package

RECORD = Path(__file__).with_name("public_api.txt")


def described(name: str, value: object) -> list[str]:
    if inspect.isclass(value):
        return described_class(name, value)
    assert inspect.isfunction(value)
    return [f"{name}{inspect.signature(value)}"]


def described_class(name: str, value: type[object]) -> list[str]:
    bases = ", ".join(base.__name__ for base in value.__bases__)
    lines = [f"class {name}({bases})"]
    if dataclasses.is_dataclass(value):
        fields: tuple[dataclasses.Field[object], ...] = dataclasses.fields(value)
        return lines + [f"    {field.name}: {field.type}" for field in fields]
    if issubclass(value, Exception):
        init = vars(value).get("__init__")
        return lines + ([f"    __init__{inspect.signature(init)}"] if init else [])
    for member, found in sorted(vars(value).items()):
        if not member.startswith("_"):
            kind = "static " if isinstance(found, staticmethod) else ""
            signature = inspect.signature(getattr(value, member))
            lines.append(f"    {kind}{member}{signature}")
    return lines


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
    assert package.__all__ == sorted(package.__all__)


def test_the_stub_of_the_native_module_names_what_is_in_it() -> None:
    stub = Path(inspect.getfile(package)).with_name("_core.pyi").read_text(encoding="utf-8")
    public = [name for name in vars(package.Document) if not name.startswith("_")]

    for name in public:
        assert f"    def {name}(" in stub
    assert stub.count("    def ") == len(public)
