"""The waits between attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.memory_service.backoff import delay_ms


@pytest.mark.parametrize(
    ("failures", "shortest", "below"),
    [
        (0, 250, 500),
        (1, 500, 1000),
        (2, 1000, 2000),
        (3, 2000, 3000),
        (4, 4000, 5000),
        (5, 8000, 9000),
        (6, 16000, 17000),
        (7, 30000, 31000),
        (8, 30000, 31000),
        (10**9, 30000, 31000),
    ],
)
def test_waits_double_up_to_half_a_minute(failures: int, shortest: int, below: int) -> None:
    assert delay_ms(failures, 0.0) == shortest
    assert delay_ms(failures, 1 - 2**-53) == below - 1


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_chance_adds_at_most_a_second_and_never_more_than_the_wait(n: int, chance: float) -> None:
    base = delay_ms(n, 0.0)

    assert base <= delay_ms(n, chance) < base + min(base, 1000)
