"""What a read may spend where it stands: little on the event loop, anything on a reader thread."""

from __future__ import annotations

from typing import Final

UNBOUNDED: Final = 1 << 62


class OverBudgetError(Exception):
    """The read costs more than it may here; it begins again on a reader thread."""


class Budget:
    """Look-ups and bytes of values that one read may still use.

    A statement is told `value_bytes`, and gives NULL in the place of a longer value, which it can
    do without reading it.
    """

    __slots__ = ("_look_ups", "value_bytes")

    def __init__(self, look_ups: int = UNBOUNDED, value_bytes: int = UNBOUNDED) -> None:
        self._look_ups = look_ups
        self.value_bytes = value_bytes

    @property
    def is_bounded(self) -> bool:
        """Whether it counts at all."""
        return self._look_ups < UNBOUNDED >> 1

    def look_up(self) -> None:
        """Count one look-up.

        Raises:
            OverBudgetError: It is one too many.
        """
        self._look_ups -= 1
        if self._look_ups < 0:
            raise OverBudgetError

    def take(self, state: int, value: str | None) -> str | None:
        """Return the value of a version in this state.

        Raises:
            OverBudgetError: It was left out for its length, or is one too many.
        """
        if value is None:
            if state == 0:  # an active version has a value
                raise OverBudgetError
            return None
        self.value_bytes -= len(value)
        if self.value_bytes < 0:
            raise OverBudgetError
        return value
