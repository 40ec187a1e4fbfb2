"""What a package imports is what it declares, no more and no less, and only what it may see."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))

# Who may never see whom, whatever is declared. Packages that do not exist yet are named on purpose:
# the rule stands before the first line that could break it.
STORAGE = ("provider", "provider_sqlite", "provider_remote", "provider_router", "automerge")
DAEMON = (*STORAGE, "provider_conformance", "backend", "server")
HOST = ("harness", "memory_service", "storage_client")
FORBIDDEN = {
    "memory_service": (*DAEMON, "protocol", "storage_client"),
    "agent_loop": (*DAEMON, "protocol", "storage_client"),
    "session_indexer": (*DAEMON, "protocol", "storage_client"),
    "workspace_indexer": (*DAEMON, "protocol", "storage_client"),
    "artifact_ingestor": DAEMON,
    "storage_client": DAEMON,
    "harness": (*DAEMON, "protocol", "storage_client", "memory_service"),
    "provider": (*HOST, "protocol", "backend", "server"),
    "provider_sqlite": (*HOST, "protocol", "backend", "server"),
    "backend": (*HOST, "provider_sqlite", "provider_remote", "provider_router", "server"),
    "server": HOST,
}


def module_of(package: Path) -> str:
    return package.name.replace("-", "_")


def imports_of(package: Path) -> Iterator[tuple[Path, str]]:
    """Yield every module that the sources of `package` import, at any depth of nesting."""
    for source in sorted((package / "src").rglob("*.py")):
        yield from ((source, name) for name in imported_names(ast.parse(source.read_text("utf-8"))))


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def owner_of(module: str) -> str | None:
    """Return the distribution that a module comes from; None for the standard library."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names:
        return None
    if parts[0] == "patchouli":
        return f"patchouli-{parts[1].replace('_', '-')}"
    distributions = packages_distributions().get(parts[0], [parts[0]])
    return re.sub(r"[-_.]+", "-", distributions[0]).lower()


def declared_by(package: Path) -> set[str]:
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    requirements = [*project["dependencies"], *(name for extra in extras for name in extra)]
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_declares_exactly_what_it_imports(package: Path) -> None:
    own = f"patchouli-{package.name}"

    imported = {owner_of(name) for _, name in imports_of(package)} - {None, own}

    # pydantic-core is the other half of pydantic, which pins it.
    assert {"pydantic" if name == "pydantic-core" else name for name in imported} == declared_by(
        package
    )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_another_package_is_imported_from_its_root(package: Path) -> None:
    own = module_of(package)

    deep = [
        f"{source.relative_to(ROOT)}: {name}"
        for source, name in imports_of(package)
        if (parts := name.split("."))[0] == "patchouli"
        and parts[1] != own
        and len(parts) > 2
        and "testing" not in parts
    ]

    assert deep == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_sees_only_its_side(package: Path) -> None:
    assert forbidden_imports(module_of(package), imports_of(package)) == []


@pytest.mark.parametrize("module", sorted(FORBIDDEN))
def test_each_rule_catches_an_import_that_breaks_it(module: str) -> None:
    target = FORBIDDEN[module][0]
    tree = ast.parse(f"def f():\n    from patchouli.{target} import anything")
    imported = ((Path("made_up.py"), name) for name in imported_names(tree))

    assert forbidden_imports(module, imported) == [f"made_up.py: patchouli.{target}"]


def forbidden_imports(module: str, imported: Iterator[tuple[Path, str]]) -> list[str]:
    unseen = {f"patchouli.{name}" for name in FORBIDDEN.get(module, ())}
    return [
        f"{source.name}: {name}"
        for source, name in imported
        if ".".join(name.split(".")[:2]) in unseen
    ]


def test_no_package_claims_the_namespace() -> None:
    assert list(ROOT.glob("packages/*/src/patchouli/__init__.py")) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_folder_distribution_and_import_bear_one_name(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["name"] == f"patchouli-{package.name}"
    assert (package / "src" / "patchouli" / module_of(package) / "py.typed").is_file()
    for document in ("README.md", "CHANGELOG.md", "LICENSE"):
        assert (package / document).is_file()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_our_packages_are_required_in_bounded_ranges(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]

    unbounded = [
        requirement
        for requirement in project["dependencies"]
        if requirement.startswith("patchouli-") and "<" not in requirement
    ]

    assert unbounded == []
