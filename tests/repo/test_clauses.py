"""Every clause of the wire contract has a test, and every test of the wire names its clause."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
WIRE = ROOT / "tests" / "wire"
CITED = re.compile(r"\bSPEC ([\d.]*\d|`[^`]+`)")
CLAUSES = {
    clause["id"]: clause
    for clause in tomllib.loads((WIRE / "clauses.toml").read_text(encoding="utf-8"))["clause"]
}


def files_with_tests() -> list[Path]:
    return sorted([*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")])


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def marked(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        argument.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.clause"
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def transcribed(path: Path) -> set[str]:
    rows = path.read_text(encoding="utf-8").split("\n")
    return {name for row in rows if row.startswith("# clauses:") for name in row.split()[2:]}


SHOWN = {
    name for file in files_with_tests() for node in functions(file) for name in marked(node)
} | {name for path in WIRE.glob("transcripts/*.ndjson") for name in transcribed(path)}


@pytest.mark.parametrize("clause", sorted(CLAUSES))
def test_a_clause_has_a_test(clause: str) -> None:
    assert clause in SHOWN


def test_sources_cite_clauses_that_exist() -> None:
    cited = {
        (path.name, name)
        for path in ROOT.glob("packages/*/src/**/*.py")
        for name in CITED.findall(path.read_text(encoding="utf-8"))
    }
    sections = {clause.partition(".")[0] for clause in CLAUSES}
    numbers = {clause["source"].removeprefix("SPEC ") for clause in CLAUSES.values()}
    known = CLAUSES.keys() | sections | numbers

    assert cited
    assert {row for row in cited if row[1].strip("`") not in known} == set()


def test_no_test_names_a_clause_that_does_not_exist() -> None:
    assert not SHOWN - CLAUSES.keys()


@pytest.mark.parametrize("path", sorted(WIRE.glob("transcripts/*.ndjson")), ids=lambda p: p.stem)
def test_a_transcript_names_its_clauses(path: Path) -> None:
    assert transcribed(path)


def test_a_test_of_the_wire_names_its_clause() -> None:
    nameless = [
        f"{file.name}: {node.name}"
        for file in WIRE.glob("test_*.py")
        if file.name != "test_transcripts.py"  # its clauses stand in the transcripts
        for node in functions(file)
        if node.name.startswith("test_") and not marked(node)
    ]

    assert nameless == []
