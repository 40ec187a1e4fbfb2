r"""What the index takes out of a JSON value, by SQLite's `json_tree` and without the interpreter.

Two things are taken in one walk each:

* the searchable leaves (`patchouli.provider.leaves`): member names, and scalars as typed. Numbers
  that SQLite would not spell like `json.dumps` are counted, and such a value is spelled in Python;
* one *token* per scalar leaf, made of where it stands and what it is, e.g. `$.profile.owner="mira`
  or `$.tags[]=#5`. A token says no more than equality needs: numbers that are equal have one token,
  elements of an array share theirs, long strings are cut. What a token finds is verified on the
  value.

`tokens_of` makes the tokens that a value must have if it equals an operand at a pointer. A step
like `5` of a pointer may be a member name or an array index, so there can be several alternatives.
"""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING, Final

from patchouli.provider_sqlite.index_text import SEPARATOR

if TYPE_CHECKING:
    from patchouli.provider_sqlite.connection import Connection

PART: Final = "\x1d"  # between the parts that EXTRACT returns
INDEX_STEPS_SPREAD: Final = 3  # steps that may be names or indices; more are not asked of the index
TOKENS_ASKED: Final = 24  # of an operand with many leaves; the rest is left to the verification

_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*\Z")
_LAST_INDEX: Final = re.compile(r"\[[0-9]+\]\Z")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,17}\Z")

_EXACT_INTEGERS: Final = "BETWEEN -9007199254740992 AND 9007199254740992"
_SPELLING: Final = "printf('%!.15g', atom)"
# `%!.15g` is what Python prints if fifteen digits are enough and no exponent is needed.
_IS_ODD_NUMBER: Final = f"""CASE
    WHEN type = 'real' THEN NOT (abs(atom) >= 0.0001 AND abs(atom) < 1e15
                                 AND CAST({_SPELLING} AS REAL) = atom)
    WHEN type = 'integer' THEN typeof(atom) <> 'integer'
    ELSE 0 END"""
_LEAF: Final = f"""CASE type
    WHEN 'text' THEN atom WHEN 'integer' THEN atom WHEN 'real' THEN {_SPELLING}
    WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'null' THEN 'null' END"""
_NAME: Final = "CASE typeof(key) WHEN 'text' THEN key END"

EXTRACT: Final = f"""
SELECT ifnull(group_concat({_NAME}, char(31)), '') || char(29) || count({_NAME}) || char(29)
    || ifnull(group_concat({_LEAF}, char(31)), '') || char(29) || count({_LEAF}) || char(29)
    || sum({_IS_ODD_NUMBER}) || char(29) || (instr(body, '\\u') > 0)
FROM json_tree(body)
"""  # noqa: S608 - of constants
"""Of a column `body`: names, their number, leaves, their number, how many numbers are odd, and
whether it holds a `\\u` escape, which a member name could be spelled with."""

_NUMBER_TOKEN: Final = f"""CASE
    WHEN typeof(atom) = 'integer' AND atom {_EXACT_INTEGERS} THEN '#' || atom
    WHEN atom {_EXACT_INTEGERS} AND atom = CAST(atom AS INTEGER) THEN '#' || CAST(atom AS INTEGER)
    ELSE printf('#%.13e', atom) END"""
_SCALAR_TOKEN: Final = f"""CASE type
    WHEN 'text' THEN '"' || CASE WHEN length(atom) <= 48 THEN atom
        ELSE substr(atom, 1, 24) || substr(atom, -16) || '"' || length(atom) END
    WHEN 'integer' THEN {_NUMBER_TOKEN}
    WHEN 'real' THEN {_NUMBER_TOKEN}
    ELSE type END"""
_PLACE: Final = "CASE typeof(key) WHEN 'integer' THEN path || '[]' ELSE fullkey END"
TOKENS: Final = f"""
SELECT ifnull(group_concat({_PLACE} || '=' || {_SCALAR_TOKEN}, char(31)), '')
FROM json_tree(body) WHERE type NOT IN ('object', 'array')
"""  # noqa: S608 - of constants
"""Of a column `body`: its tokens with separators between them."""

_TOKENS_OF_OPERAND: Final = f"SELECT ({TOKENS}) FROM (SELECT ? AS body)"  # noqa: S608 - of constants


def tokens_of(
    connection: Connection, pointer: str, operand_json: str, *, as_element: bool = False
) -> list[list[str]] | None:
    """Return alternatives, each a list of tokens that a value has if it is what is asked for.

    Asked is that the value at `pointer` equals the operand, or `as_element` that it is an array
    which holds the operand. None if the index cannot tell: an empty array or object, an element
    that is not a scalar, an escaped control character, many steps that look like indices.
    """
    if (as_element and operand_json[:1] in {"[", "{"}) or "\\u" in operand_json:
        return None
    text: str = connection.execute(_TOKENS_OF_OPERAND, (operand_json,)).get
    if text == "":
        return None
    tokens = text.split(SEPARATOR)[:TOKENS_ASKED]
    places = [place + "[]" for place in _places(pointer)] if as_element else _places(pointer)
    alternatives: list[list[str]] = []
    for place in places:
        found: list[str] = []
        for token in tokens:
            # `$=…` is the operand itself, which as an element of an array shares the array's place.
            at = _LAST_INDEX.sub("[]", place) if token.startswith("$=") else place
            found.append(at + token[1:])
        alternatives.append(found)
    return alternatives or None


def match_of(alternatives: list[list[str]]) -> str:
    """Return the question to the token index for values that have all tokens of an alternative."""
    return " OR ".join("(" + " AND ".join(map(_quote, tokens)) + ")" for tokens in alternatives)


def _places(pointer: str) -> list[str]:
    """Return every way in which SQLite may spell the place that `pointer` names."""
    steps: list[tuple[str, ...]] = []
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        member = f".{name}" if _PLAIN_NAME.match(name) else f'."{_escaped(name)}"'
        steps.append((member, f"[{name}]") if _INDEX.match(name) else (member,))
    if sum(len(step) > 1 for step in steps) > INDEX_STEPS_SPREAD:
        return []
    return ["$" + "".join(choice) for choice in product(*steps)]


def _escaped(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _quote(token: str) -> str:
    return '"' + token.replace('"', '""') + '"'
