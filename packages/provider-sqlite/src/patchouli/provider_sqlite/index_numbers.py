"""Numbers as tokens by which a range finds them.

A double has a key of 64 bits that sorts like the number. A number leaves seven tokens in the token
index, made of the first 4, 8, … 28 bits of its key: the cells that it lies in, from coarse to fine
(the first twelve bits are sign and exponent). A range is covered by cells, coarse ones in its
middle and finer ones towards its ends, down to the finest level at which they are not too many. So
a narrow range asks for few documents beside those that lie in it, a range that is open on one side
works as well, and what the cells hold too much is left to the verification.

Integers that a double cannot hold are rounded, which never reorders them. Strings that look like
numbers get tokens, too; they are not told apart.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import TYPE_CHECKING, Final

from patchouli.provider_sqlite.index_leaves import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable

CELLS_ASKED: Final = 96  # each is a look into every segment of the index
_FINEST: Final = 7  # hexadecimal digits of a cell
_DIGITS: Final = frozenset("0123456789")
_STARTS: Final = _DIGITS | {"-"}
_INFINITE: Final = frozenset(("Infinity", "-Infinity"))

_DOUBLE: Final = Struct(">d")
_BITS: Final = Struct(">Q")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1


def number_tokens(prefixes: Iterable[str], leaves: Iterable[str]) -> str:
    """Return the tokens of all leaves that are numbers, each after a separator."""
    found = ""
    for prefix, leaf in zip(prefixes, leaves, strict=True):
        if (leaf[:1] in _STARTS and leaf[-1:] in _DIGITS) or leaf in _INFINITE:
            try:
                cell = f"{_key(float(leaf)):016x}"
            except ValueError:
                continue
            place = f"{SEPARATOR}{prefix[:-1]}#"
            found += (
                f"{place}{cell[0]}{place}{cell[:2]}{place}{cell[:3]}{place}{cell[:4]}"
                f"{place}{cell[:5]}{place}{cell[:6]}{place}{cell[:7]}"
            )
    return found


def range_tokens(prefix: str, low: float, high: float) -> list[str] | None:
    """Return tokens of which every number at a place from `low` to `high` has one, few others.

    The largest cells come first. None if there would be too many.
    """
    first, last = _key(as_double(low)), _key(as_double(high))
    if first > last:
        return []
    for digits in range(_FINEST, 0, -1):
        shift = 64 - 4 * digits
        cells = _cover(first >> shift, last >> shift, digits)
        if len(cells) <= CELLS_ASKED:
            return [f"{prefix[:-1]}#{cell}" for cell in sorted(cells, key=len)]
    return None


def as_double(number: float) -> float:
    """Return the double nearest to an integer or float."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _cover(first: int, last: int, digits: int) -> list[str]:
    """Return cells from `first` to `last`, merged where sixteen of them make a coarser one."""
    cells: list[str] = []
    while digits > 1:
        inner_first, inner_end = -(-first // 16) * 16, (last + 1) // 16 * 16
        if inner_first >= inner_end:
            break
        cells += [f"{cell:0{digits}x}" for cell in range(first, inner_first)]
        cells += [f"{cell:0{digits}x}" for cell in range(inner_end, last + 1)]
        first, last, digits = inner_first // 16, inner_end // 16 - 1, digits - 1
    return cells + [f"{cell:0{digits}x}" for cell in range(first, last + 1)]


def _key(number: float) -> int:
    bits: int = _BITS.unpack(_DOUBLE.pack(number + 0.0))[0]  # -0.0 becomes 0.0
    return bits ^ _SIGN if bits < _SIGN else bits ^ _ALL
