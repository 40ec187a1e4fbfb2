"""Filters as SQL conditions that never exclude a value which matches.

SQL decides most rows without the interpreter; `patchouli.provider.holds` then decides every row
that passed. So a condition here may be too wide (numbers near the operand, any array), never too
narrow, and a filter that SQL cannot express safely has none.
"""

from __future__ import annotations

import json
import math
import re
from itertools import product
from typing import TYPE_CHECKING, Final

from patchouli.provider import Operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Filter, Json
    from patchouli.provider_sqlite.connection import SqlBinding

FILTERS_IN_SQL: Final = 24  # the others are left to the interpreter; SQLite bounds an expression
AMBIGUOUS_STEPS: Final = 2  # steps that may be a name or an index, each doubles the condition

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}\Z")
_LONG_INDEX: Final = re.compile(r"[1-9][0-9]{9,}\Z")
_UNSAFE_NAME: Final = re.compile(r'["\\\x00-\x1f]')
_EXACT: Final = 2**53

Bindings = dict[str, "SqlBinding"]


def conditions(filters: Sequence[Filter], value: str) -> tuple[str, Bindings]:
    """Return `" AND …"` for the column `value`, and what its parameters are bound to."""
    sql: list[str] = []
    bindings: Bindings = {}
    for number, filter_ in enumerate(filters[:FILTERS_IN_SQL]):
        paths = _paths(filter_.pointer)
        if not paths:
            continue
        operand: Json = json.loads(filter_.operand_json)
        alternatives: list[str] = []
        for which, path in enumerate(paths):
            name = f"path{number}_{which}"
            bindings[name] = path
            alternatives.append(
                _condition(
                    filter_.operator, operand, value, f":{name}", f"operand{number}", bindings
                )
            )
        sql.append(f" AND ({' OR '.join(alternatives)})")
    return "".join(sql), bindings


def _condition(
    operator: Operator, operand: Json, value: str, path: str, name: str, bindings: Bindings
) -> str:
    type_, actual = f"json_type({value}, {path})", f"json_extract({value}, {path})"
    match operator:
        case Operator.EQUAL:
            return _equal(operand, type_, actual, name, bindings)
        case Operator.NOT_EQUAL:
            if _is_sure(operand):
                equal = _equal(operand, type_, actual, name, bindings)
                return f"({type_} IS NOT NULL AND NOT ({equal}))"
            return f"{type_} IS NOT NULL"
        case Operator.CONTAINS:
            return _contains(operand, type_, actual, name, bindings)
        case Operator.LESS | Operator.LESS_OR_EQUAL:
            return _ordered(operand, type_, actual, "<", operator, name, bindings)
        case Operator.GREATER | Operator.GREATER_OR_EQUAL:
            return _ordered(operand, type_, actual, ">", operator, name, bindings)


def _equal(operand: Json, type_: str, actual: str, name: str, bindings: Bindings) -> str:
    if operand is None or isinstance(operand, bool):
        return f"{type_} = '{json.dumps(operand)}'"
    if isinstance(operand, str):
        bindings[name] = operand
        return f"({type_} = 'text' AND {actual} = :{name})"
    if isinstance(operand, int | float):
        low, high = _around(operand)
        bindings[name + "l"], bindings[name + "h"] = low, high
        between = f"{actual} BETWEEN :{name}l AND :{name}h"
        return f"({type_} IN ('integer', 'real') AND {between})"
    return f"{type_} = '{'array' if isinstance(operand, list) else 'object'}'"


def _contains(operand: Json, type_: str, actual: str, name: str, bindings: Bindings) -> str:
    if not isinstance(operand, str):
        return f"{type_} = 'array'"
    bindings[name] = operand
    is_within = f"{type_} = 'text' AND instr({actual}, :{name}) > 0" if operand else "1"
    return f"({type_} = 'array' OR ({is_within}))"


def _ordered(
    operand: Json,
    type_: str,
    actual: str,
    comparison: str,
    operator: Operator,
    name: str,
    bindings: Bindings,
) -> str:
    if isinstance(operand, str):
        is_strict = operator in {Operator.LESS, Operator.GREATER}
        bindings[name] = operand
        return f"({type_} = 'text' AND {actual} {comparison}{'' if is_strict else '='} :{name})"
    if isinstance(operand, bool) or not isinstance(operand, int | float):
        return "0"
    bindings[name] = _around(operand)[comparison == "<"]
    return f"({type_} IN ('integer', 'real') AND {actual} {comparison}= :{name})"


def _is_sure(operand: Json) -> bool:
    """Return whether the condition for equality with `operand` is exact."""
    if isinstance(operand, bool) or operand is None or isinstance(operand, str):
        return True
    return isinstance(operand, int) and abs(operand) < _EXACT


def _around(operand: float) -> tuple[float, float]:
    """Return two numbers that SQLite holds, with every stored form of `operand` between them."""
    if abs(operand) < _EXACT and (isinstance(operand, int) or operand.is_integer()):
        return int(operand), int(operand)
    try:
        near = float(operand)
    except OverflowError:
        near = math.copysign(math.inf, operand)
    return math.nextafter(near, -math.inf), math.nextafter(near, math.inf)


def _paths(pointer: str) -> list[str]:
    """Return every SQLite path that may mean `pointer`; none if SQLite has no safe spelling."""
    steps: list[tuple[str, ...]] = []
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if _UNSAFE_NAME.search(name) or _LONG_INDEX.match(name):
            return []
        member = f'."{name}"'
        steps.append((member, f"[{name}]") if _INDEX.match(name) else (member,))
    if sum(len(step) > 1 for step in steps) > AMBIGUOUS_STEPS:
        return []
    return ["$" + "".join(choice) for choice in product(*steps)]
