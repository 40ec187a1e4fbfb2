"""`config/` holds, for people, the very documents that the backend ships.

The package is their source: a wheel has to carry them. After a change there, copy them:
`cp -r packages/backend/src/patchouli/backend/config/documents/. config/`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "packages/backend/src/patchouli/backend/config/documents"


def documents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_config_is_what_the_backend_ships() -> None:
    assert documents(ROOT / "config") == documents(SHIPPED)


def test_every_document_is_there() -> None:
    assert sorted(documents(SHIPPED)) == [
        "patchouli.default.json",
        "patchouli.example.json",
        "patchouli.schema.json",
        "patterns/causal_session.json",
        "patterns/eventual.json",
        "patterns/shared_transaction.json",
        "providers.local.json",
        "providers.schema.json",
    ]
