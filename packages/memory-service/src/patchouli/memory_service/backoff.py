"""How long a subscription waits before it tries a failed plugin again."""

from __future__ import annotations

import math
from typing import Final

FIRST_DELAY_MS: Final = 250
LONGEST_DELAY_MS: Final = 30_000
LARGEST_JITTER_MS: Final = 1_000  # so that many consumers of one plugin do not come back at once
_LARGEST_EXPONENT: Final = 16  # beyond it the delay is the longest one anyway


def delay_ms(failures: int, chance: float) -> int:
    """Return the wait after one more failure.

    Args:
        failures: Failures in a row before this one, without a change handled and saved between.
        chance: A random number in [0, 1).
    """
    base = min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** min(failures, _LARGEST_EXPONENT))
    return base + math.floor(chance * min(base, LARGEST_JITTER_MS))
