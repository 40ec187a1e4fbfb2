"""Turns the checks of invariants on (`patchouli.provider.check`) before anything is imported."""

from __future__ import annotations

import os

os.environ.setdefault("PATCHOULI_VERIFY", "1")
