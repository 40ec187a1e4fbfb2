"""How much is tried, and what to repeat a failure with.

Few examples by default, more with `PATCHOULI_HISTORY_EXAMPLES`, which is a factor.
`PATCHOULI_HISTORY_SEED` fixes what recorded clients do, as far as the machine lets it.
"""

from __future__ import annotations

import os
from random import Random  # noqa: TID251 - seeded, and the seed is printed
from typing import Final

from hypothesis import HealthCheck, Phase, settings

FACTOR: Final = int(os.environ.get("PATCHOULI_HISTORY_EXAMPLES", "1"))
SEED: Final = int(os.environ.get("PATCHOULI_HISTORY_SEED", "0")) or int.from_bytes(os.urandom(4))


def say_seed() -> int:
    """Print what a failure can be repeated with, and return it; pytest shows it then."""
    print(f"PATCHOULI_HISTORY_SEED={SEED}")  # noqa: T201 - see above
    return SEED


def seeded(seed: float) -> Random:
    """Return a source of chance that is the same for the same seed."""
    return Random(seed)  # noqa: S311 - it hides nothing


def examples(number: int) -> settings:
    """Return the settings of a property that is tried so often by default."""
    return settings(
        deadline=None,
        max_examples=number * FACTOR,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )
