from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from patchouli.protocol import METHODS, ErrorCode, Reason

PACKAGE = Path(__file__).parent.parent
SPEC = (PACKAGE / "SPEC.md").read_text(encoding="utf-8")
IN_SPEC = {
    name: f"SPEC {number}" for number, name in re.findall(r"(?m)^\*\*([\d.]+)\*\* `([^`]+)`:", SPEC)
}


def test_clauses_are_numbered_without_gaps() -> None:
    numbers = [tuple(map(int, source.split()[1].split("."))) for source in IN_SPEC.values()]
    sections = max(section for section, _ in numbers)

    assert numbers == [
        (section, number)
        for section in range(1, sections + 1)
        for number in range(1, 1 + sum(s == section for s, _ in numbers))
    ]


def test_the_list_of_clauses_is_that_of_the_specification() -> None:
    listing = PACKAGE.parent.parent / "tests" / "wire" / "clauses.toml"
    clauses = tomllib.loads(listing.read_text(encoding="utf-8"))["clause"]

    assert {clause["id"]: clause["source"] for clause in clauses} == IN_SPEC
    assert all(clause["must"] for clause in clauses)


def test_numbers_named_in_clauses_lead_to_them() -> None:
    listing = PACKAGE.parent.parent / "tests" / "wire" / "clauses.toml"
    for clause in tomllib.loads(listing.read_text(encoding="utf-8"))["clause"]:
        named = re.search(r"SPEC [\d.]+", clause["must"])
        assert named is None or named[0] == clause["source"]


def test_tests_of_this_package_name_clauses_that_exist() -> None:
    marked = {
        decorator.args[0].value
        for file in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.clause"
    }

    assert marked <= set(IN_SPEC)
    assert {name for name in IN_SPEC if name.startswith(("json.", "facts."))} - marked <= {
        "json.exact"  # needs a store
    }


def test_the_specification_names_every_method_and_every_error() -> None:
    for name in METHODS:
        prefix, _, verb = name.rpartition(".")
        assert f"`{name}`" in SPEC or f"`{verb}`" in SPEC or verb in SPEC, prefix
    for reason in Reason:
        assert f"`{reason.value}`" in SPEC
    for code in ErrorCode:
        assert f"| \u2212{-code} |" in SPEC
