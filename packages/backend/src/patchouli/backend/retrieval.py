"""What a query text asks for, and the cursors that lead from one page to the next.

The text is one JSON object: `text`, `ids`, `where`, `order`, `cursor`, all optional; `{}` lists
entities. In `where`, a pointer maps to a condition: an object whose members all begin with `$` is
the conjunction of these operators, an object with other members as well is refused, and anything
else must be equal.

A cursor is opaque and bound to its query: its seal covers scope, types, text, ids, conditions and
order, and is made with a secret of the database. The page size may change from page to page.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from patchouli.backend.canonical import canonical, canonical_bytes
from patchouli.backend.errors import InvalidRequestError
from patchouli.backend.pointers import is_member_pointer
from patchouli.protocol import JsonParseError, parse_json
from patchouli.provider import Filter, Operator, Order, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.backend.limits import Limits
    from patchouli.provider import Hit, Json, ScopeText

_POINTER: Final = "data/query"
_MEMBERS: Final = ("text", "ids", "where", "order", "cursor")
_ORDERS: Final = {order.value: order for order in Order}
_OPERATORS: Final = {
    "$eq": Operator.EQUAL,
    "$ne": Operator.NOT_EQUAL,
    "$lt": Operator.LESS,
    "$lte": Operator.LESS_OR_EQUAL,
    "$gt": Operator.GREATER,
    "$gte": Operator.GREATER_OR_EQUAL,
    "$contains": Operator.CONTAINS,
}
_SEAL_BYTES: Final = 16  # half of SHA-256: guessing one is hopeless, and cursors stay short
_PURPOSE: Final = b"patchouli retrieval cursor 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A query text, understood; `cursor` is not yet opened."""

    text: str | None
    ids: frozenset[str] | None
    filters: tuple[Filter, ...]
    order: Order
    cursor: str | None


def parse_instruction(query: str, limits: Limits) -> Instruction:
    """Return what `query` asks for.

    Raises:
        InvalidRequestError: It is not JSON of the wire's profile, not an object, or breaks a rule
            or a bound of the language.
    """
    try:
        found = parse_json(query)
    except JsonParseError as error:
        raise _refusal("", f"must hold JSON: {error}") from error
    if not isinstance(found, dict):
        raise _refusal("", "must hold one JSON object, such as {}")
    for name in found:
        if name not in _MEMBERS:
            raise _refusal("", f"may have only the members {', '.join(_MEMBERS)}")
    text = _text(found["text"]) if "text" in found else None
    return Instruction(
        text=text,
        ids=_ids(found["ids"], limits.max_ids) if "ids" in found else None,
        filters=_filters(found["where"], limits.max_conditions) if "where" in found else (),
        order=_order(found.get("order", _default_order(text)), has_text=text is not None),
        cursor=_cursor(found["cursor"]) if "cursor" in found else None,
    )


class CursorSeal:
    """Makes and opens the cursors of one query.

    A cursor is `<seal><position>` in URL-safe Base64; the seal is an HMAC over the query and the
    position, so that neither another query nor an invented position is accepted.
    """

    __slots__ = ("_query", "_secret")

    def __init__(
        self, secret: bytes, instruction: Instruction, *, scope: ScopeText, types: Sequence[str]
    ) -> None:
        self._secret = secret
        filters: list[Json] = [
            [condition.pointer, condition.operator.value, condition.operand_json]
            for condition in instruction.filters
        ]
        query: dict[str, Json] = {
            "scope": scope,
            "types": [*types],
            "text": instruction.text,
            "ids": None if instruction.ids is None else [*sorted(instruction.ids)],
            "where": filters,
            "order": instruction.order.value,
        }
        self._query = _PURPOSE + canonical_bytes(query)

    def cursor_after(self, hit: Hit) -> str:
        """Return the cursor with which the next page begins after `hit`."""
        position = canonical_bytes([hit.score, hit.recorded_at_unix_ms, hit.key.type, hit.key.id])
        return urlsafe_b64encode(self._seal(position) + position).rstrip(b"=").decode()

    def position(self, cursor: str) -> Position:
        """Return the place after which the page of `cursor` begins.

        Raises:
            InvalidRequestError: It was not made for this query, or not by this database.
        """
        try:
            padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
            packed = b64decode(padded, altchars=b"-_", validate=True)
        except ValueError:
            packed = b""
        seal, position = packed[:_SEAL_BYTES], packed[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(position)):
            raise _refusal(
                "/cursor", "must be the next_cursor of the same query; begin again without it"
            )
        # Sealed, so it is what cursor_after wrote.
        score, recorded_at_unix_ms, entity_type, entity_id = orjson.loads(position)
        return Position(
            score=score,
            recorded_at_unix_ms=recorded_at_unix_ms,
            type=entity_type,
            id=entity_id,
        )

    def _seal(self, position: bytes) -> bytes:
        return hmac.digest(self._secret, self._query + b"\n" + position, "sha256")[:_SEAL_BYTES]


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise _refusal("/text", "must be a string")
    trimmed = value.strip()
    if not trimmed:
        raise _refusal("/text", "must hold more than white space")
    return trimmed


def _ids(value: Json, most: int) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise _refusal("/ids", "must be a non-empty array of ids")
    if len(value) > most:
        raise _refusal("/ids", f"must hold at most {most} ids")
    ids = {found for found in value if isinstance(found, str) and found}
    if len(ids) < len(value):
        raise _refusal("/ids", "must hold non-empty strings, none of them twice")
    return frozenset(ids)


def _filters(value: Json, most: int) -> tuple[Filter, ...]:
    """Return the conditions in ascending order of pointer and operator, each once."""
    if not isinstance(value, dict):
        raise _refusal("/where", "must be an object of conditions by JSON Pointer")
    found: list[Filter] = []
    for pointer in sorted(value):
        if not is_member_pointer(pointer):
            raise _refusal("/where", "must have names that are JSON Pointers, such as /title")
        found += [
            Filter(pointer=pointer, operator=operator, operand_json=canonical(operand))
            for operator, operand in _condition(value[pointer])
        ]
    if len(found) > most:
        raise _refusal("/where", f"must hold at most {most} conditions")
    return tuple(found)


def _condition(value: Json) -> list[tuple[Operator, Json]]:
    if not isinstance(value, dict) or not any(name.startswith("$") for name in value):
        return [(Operator.EQUAL, value)]
    if not all(name.startswith("$") for name in value):
        raise _refusal(
            "/where",
            "must not mix operators and other members in one condition; use $eq for a "
            "literal object",
        )
    unknown = [name for name in value if name not in _OPERATORS]
    if unknown:
        raise _refusal("/where", f"may use only the operators {', '.join(_OPERATORS)}")
    return [(_OPERATORS[name], value[name]) for name in sorted(value)]


def _default_order(text: str | None) -> str:
    return Order.NEWEST.value if text is None else Order.RELEVANCE.value


def _order(value: Json, *, has_text: bool) -> Order:
    order = _ORDERS.get(value) if isinstance(value, str) else None
    if order is None:
        raise _refusal("/order", f"must be one of {', '.join(_ORDERS)}")
    if order is Order.RELEVANCE and not has_text:
        raise _refusal("/order", "can be relevance only where text is given")
    return order


def _cursor(value: Json) -> str:
    if not isinstance(value, str):
        raise _refusal("/cursor", "must be a string")
    return value


def _refusal(member: str, problem: str) -> InvalidRequestError:
    pointer = _POINTER + member
    return InvalidRequestError(f"{pointer} {problem}", pointer=pointer)
