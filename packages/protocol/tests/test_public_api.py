"""The public names and signatures of the package, held against `public_api.txt`.

A difference is a decision: run with PATCHOULI_WRITE_PUBLIC_API=1 to write the file anew, and
explain the diff in the change.
"""

from __future__ import annotations

import ast
import enum
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import patchouli.protocol as package
import pytest
from pydantic import BaseModel

RECORD = Path(__file__).with_name("public_api.txt")


def described(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"class {name}({bases})"
        yield from (f"    {member}" for member in members(value))
    elif inspect.isfunction(value):
        yield f"{name}{inspect.signature(value)}"
    elif isinstance(value, str | int | tuple):
        yield f"{name} = {value!r}"
    else:
        yield f"{name}: {type(value).__name__.lstrip('_')}"


def members(value: type) -> Iterator[str]:
    if issubclass(value, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in value)
    elif issubclass(value, BaseModel | tuple) or "__dataclass_fields__" in vars(value):
        for name, annotation in vars(value).get("__annotations__", {}).items():
            if not name.startswith("_") and name != "model_config":
                yield f"{name}: {getattr(annotation, '__forward_arg__', annotation)}"
    elif "__init__" in vars(value):
        yield f"__init__{inspect.signature(value.__init__)}"
    for name, member in sorted(vars(value).items()):
        if name.startswith("_") or issubclass(value, tuple):
            continue
        if isinstance(member, property):
            yield f"{name}: property"
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            yield f"{name}{inspect.signature(getattr(value, name))}"


def test_the_public_names_and_signatures_are_those_on_record() -> None:
    lines = [line for name in package.__all__ for line in described(name, getattr(package, name))]
    text = "\n".join(lines) + "\n"
    if os.environ.get("PATCHOULI_WRITE_PUBLIC_API") == "1":
        RECORD.write_text(text, encoding="utf-8")

    assert text == RECORD.read_text(encoding="utf-8")


def test_what_a_type_checker_sees_is_what_is_loaded() -> None:
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("patchouli.")
        for alias in node.names
    }

    assert {name: f"{package.__name__}.{home}" for name, home in package._HOMES.items()} == seen
    assert set(package.__all__) == set(seen)
    assert dir(package) == sorted(package.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'surplus'"):
        _ = package.surplus


def test_framing_errors_and_names_load_no_models() -> None:
    program = """
import sys
from patchouli.protocol import HANDSHAKE, STATUS, ErrorCode, LineDecoder, RpcError, encode_line
encode_line(RpcError(ErrorCode.NOT_FOUND, "gone").response(1))
LineDecoder().feed(b"{}")
sys.exit(any(name.partition(".")[0] in ("pydantic", "pydantic_core") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
