"""How the boundary's plans, records and outcomes are made: values that nobody changes.

A type checker treats them as frozen. The program does not guard them: a frozen dataclass sets each
field through a call, and several of them are made on every request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make `cls` a slotted dataclass with keyword arguments and equality by its fields.

    `dataclasses` does not write its methods: it compiles a text for each, which costs the start of
    a process four times as much. It has no hash: none is looked up by its value.
    """
    described = dataclass(kw_only=True, init=False, repr=False, eq=False, match_args=False)(cls)
    names = tuple([field.name for field in fields(described)])  # pyright: ignore[reportArgumentType] -- it is a dataclass now
    members: dict[str, Any] = dict(described.__dict__)  # what a class holds may be anything
    members.pop("__dict__", None)
    members.pop("__weakref__", None)
    defaults = {name: members.pop(name) for name in names if name in members}
    members |= {
        "__eq__": _equal,
        "__hash__": None,
        "__init__": _initializer(cls, names, defaults),
        "__repr__": _spelled,
        "__slots__": names,
    }
    return type(cls)(cls.__name__, cls.__bases__, members)


def _initializer(cls: type, names: tuple[str, ...], defaults: dict[str, Any]) -> Any:
    """Return the function that sets each field; only a compiled one is as fast as it can be."""
    parameters = "".join(
        f", {name}=defaults['{name}']" if name in defaults else f", {name}" for name in names
    )
    body = "; ".join(f"self.{name} = {name}" for name in names) or "pass"
    star = ", *" if names else ""
    made: dict[str, Any] = {"defaults": defaults}
    exec(f"def __init__(self{star}{parameters}): {body}", made)  # noqa: S102 -- of our own names
    initializer = made["__init__"]
    initializer.__annotations__ = {**cls.__annotations__, "return": None}
    initializer.__module__ = cls.__module__
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    return initializer


def _equal(self: Any, other: object) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _spelled(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__qualname__}({values})"
