"""How the boundary's plans, records and outcomes are made: values that nobody changes.

A type checker treats them as frozen. The program does not guard them: a frozen dataclass sets each
field through a call, and several of them are made on every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make `cls` a slotted dataclass with keyword arguments and equality by its fields.

    It has no hash: none is looked up by its value, and making one for each costs the start of a
    process more than all their other methods.
    """
    return dataclass(slots=True, kw_only=True)(cls)
