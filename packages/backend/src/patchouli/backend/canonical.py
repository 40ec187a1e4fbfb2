r"""One text for one JSON value, and typed equality of JSON values.

Scopes, control keys, stored values and fingerprints are compared as text, so a value has exactly
one: members sorted by code point at every level, no white space, only `"`, `\` and control
characters escaped (`\u00xx` in lower case), everything else literal UTF-8, integers in plain
decimal, other numbers in their shortest round-trip form with a `.` or an exponent.

The functions take JSON values as the strict parser makes them: no NaN or infinity, no lone
surrogates, integers between -2^63 and 2^64 - 1. Integers beyond, surrogates and foreign types raise
`TypeError`; NaN and infinity would come out as `null`, and are kept away where text enters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from patchouli.provider import ControlKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.provider import Json, ScopeText

# Only exact JSON types are encoded: a dataclass, a date or a subclass of str is a caller's mistake.
_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def canonical_bytes(value: Json | Mapping[str, Json]) -> bytes:
    """Return the canonical text of `value` in UTF-8."""
    return orjson.dumps(value, option=_OPTIONS)


def canonical(value: Json | Mapping[str, Json]) -> str:
    """Return the canonical text of `value`."""
    return orjson.dumps(value, option=_OPTIONS).decode()


def control_key(scope: ScopeText, fields: Mapping[str, Json]) -> ControlKey:
    """Return the text that names `fields` inside `scope`.

    `scope` always comes first: stored data is found by this spelling, so it never changes.
    """
    return ControlKey(f'{{"scope":{scope},"fields":{canonical(fields)}}}')


def jeq(left: Json, right: Json) -> bool:
    """Return whether two values are the same JSON: same kinds, same content, member order ignored.

    An integer never equals a number with a fraction part (`1` and `1.0` differ), a boolean is no
    number, and 0.0 equals -0.0.
    """
    # The comparison of the language is coarser and much faster, so most unequal pairs end here.
    return left == right and _same_kinds(left, right)


def _same_kinds(left: Json, right: Json) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return all(_same_kinds(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return all(map(_same_kinds, left, right))
    return type(left) is type(right)
