"""JSON Pointers (RFC 6901) into values that were parsed strictly."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.provider import Json

Tokens = tuple[str, ...]


class Unbound(Enum):
    """The type of `UNBOUND`."""

    UNBOUND = "unbound"


UNBOUND: Final = Unbound.UNBOUND
"""What an alias is bound to that the request does not carry; null is a value and not this."""

_INDEX_DIGITS = 18
_INDEX = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_ESCAPES = re.compile(r"~(?![01])")


def is_member_pointer(pointer: str) -> bool:
    """Return whether `pointer` is a JSON Pointer (RFC 6901) that names more than the whole value.

    `/` alone is one: it names the member whose name is empty.
    """
    return pointer.startswith("/") and _ESCAPES.search(pointer) is None


def compile_pointer(pointer: str) -> Tokens:
    """Return the unescaped tokens of a pointer for which `is_member_pointer` holds."""
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def resolve(value: Json | Mapping[str, Json], tokens: Tokens) -> Json | Literal[Unbound.UNBOUND]:
    """Return what `tokens` lead to inside `value`, or `UNBOUND` if they lead nowhere.

    An array is entered by a decimal index without sign and leading zero; `-` names no item.
    """
    node = cast("Json", value)
    for token in tokens:
        if isinstance(node, dict):
            if token not in node:
                return UNBOUND
            node = node[token]
        elif isinstance(node, list):
            index = _index_or_none(token)
            if index is None or index >= len(node):
                return UNBOUND
            node = node[index]
        else:
            return UNBOUND
    return node


def _index_or_none(token: str) -> int | None:
    # More digits than this lie outside of any array, and need not become a number.
    return int(token) if len(token) <= _INDEX_DIGITS and _INDEX.fullmatch(token) else None
