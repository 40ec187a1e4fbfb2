"""How much of the crash tests is run, and what to repeat a failure with.

By default they are short enough for every run of the tests. `PATCHOULI_CRASH_ROUNDS` says how often
a daemon is killed or stopped under load; from ten on nothing is left out elsewhere either.
`PATCHOULI_CRASH_SEED` fixes what is written and when the kill comes, as far as the machine lets it.
"""

from __future__ import annotations

import os
from typing import Final

ROUNDS: Final = int(os.environ.get("PATCHOULI_CRASH_ROUNDS", "3"))
SEED: Final = int(os.environ.get("PATCHOULI_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4))

STARTS: Final = 20 if ROUNDS >= 10 else 6  # of two daemons at once
STRIDE: Final = 1 if ROUNDS >= 10 else 7  # from one failing call to the next
FIRST: Final = SEED % STRIDE


def say_seed() -> None:
    """Print what a failure can be repeated with; pytest shows it then."""
    print(f"PATCHOULI_CRASH_SEED={SEED}")  # noqa: T201 - see above
