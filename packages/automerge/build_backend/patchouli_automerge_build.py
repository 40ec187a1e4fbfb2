"""The build backend: maturin, told to leave out where on this machine it builds.

A Rust panic names its source file, and the compiler takes the path that it was given. Without this
a wheel holds the home of whoever built it, and two machines build two different wheels. Cargo has a
setting of its own for it (`trim-paths`) only in releases that are newer than the one we ask for.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from maturin import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_FLAGS = "CARGO_ENCODED_RUSTFLAGS"  # wins over RUSTFLAGS and over the configuration of cargo
_SEPARATOR = "\x1f"


def _compiler_flags() -> str:
    """Return the flags that are set already, and those that rename directories."""
    given = os.environ.get(_FLAGS)
    if given is None:
        given = _SEPARATOR.join(os.environ.get("RUSTFLAGS", "").split())
    renamed = {
        Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")).resolve(): "/cargo",
        Path(__file__).resolve().parents[1]: "/patchouli-automerge",
    }
    toolchain = _toolchain_or_none()
    if toolchain is not None:
        renamed[toolchain / "lib" / "rustlib" / "src" / "rust"] = "/rust"
    renaming = [f"--remap-path-prefix={place}={name}" for place, name in renamed.items()]
    return _SEPARATOR.join([*filter(None, [given]), *renaming])


def _toolchain_or_none() -> Path | None:
    """Return where the toolchain lies; without one maturin says what is missing."""
    compiler = os.environ.get("RUSTC", "rustc")
    try:
        found = subprocess.run(  # noqa: S603 - the compiler that builds the package
            [compiler, "--print", "sysroot"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(found.stdout.strip())


os.environ[_FLAGS] = _compiler_flags()
