"""Checks of invariants that run in tests and cost nothing in production.

A check never changes what the program does: it either passes or raises `AssertionError`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_is_enabled = os.environ.get("PATCHOULI_VERIFY", "") == "1"


def check(invariant: str, holds: Callable[[], bool]) -> None:
    """Raise `AssertionError` naming `invariant` if checks are on and `holds()` is false.

    Checks are on when the environment variable PATCHOULI_VERIFY is 1 as the program starts.
    """
    if _is_enabled and not holds():
        raise AssertionError(invariant)
