"""The version of this package, looked up when it is first asked for."""

from __future__ import annotations

from functools import cache


@cache
def software_version() -> str:
    """Return the version that is installed."""
    from importlib.metadata import version  # noqa: PLC0415 -- slow to load, seldom needed

    return version("patchouli-server")
