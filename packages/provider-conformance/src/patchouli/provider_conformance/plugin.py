"""The pytest plugin of the suite: its markers, and readable assertion failures.

pytest loads this module in every project that has the distribution installed, so it imports nothing
of the suite, adds no option and changes no setting.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "patchouli.provider_conformance.invariants",
    "patchouli.provider_conformance.machine",
    "patchouli.provider_conformance.suite",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers that the suite uses, also for projects with strict markers."""
    config.addinivalue_line(
        "markers", "requires(claim, …): capabilities without which a conformance case is left out"
    )
    config.addinivalue_line("markers", "slow: takes longer than half a second")
