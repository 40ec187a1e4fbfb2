"""No file of the project holds what only one machine knows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"uv.lock", "Cargo.lock"}  # their tools write where packages come from
MACHINE_PATH = re.compile(rb"(?<![A-Za-z0-9_.~}-])/(?:work|root|home/[a-z]+)/")
REGISTRY = re.compile(
    rb"https?://(?:[a-z0-9.-]*pypi|[a-z0-9.-]*crates\.io|registry\.npmjs)[^\s\"')]*"
)


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]


def lines_with(pattern: re.Pattern[bytes]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.decode(errors='replace').strip()}"
        for path in tracked_files()
        if path.is_file() and path.name not in LOCKS and path != Path(__file__).resolve()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_absolute_path_of_a_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_address_of_a_package_registry() -> None:
    assert lines_with(REGISTRY) == []
