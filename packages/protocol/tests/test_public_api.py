"""What a type checker sees of the package, and what importing it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import patchouli.protocol as package
import pytest


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
