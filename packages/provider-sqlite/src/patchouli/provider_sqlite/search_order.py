"""The result orders in SQL: over columns `recorded_at`, `type`, `id`, `covered` and `total`.

Each says the same as `patchouli.provider.sort_key`; descending ids reverse the key as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import Order

if TYPE_CHECKING:
    from patchouli.provider import Position
    from patchouli.provider_sqlite.search_filters import Bindings

SCORE: Final = "covered * 1.0 / total"
ORDER: Final[dict[Order, str]] = {
    Order.RELEVANCE: f"{SCORE} DESC, recorded_at DESC, type, id",
    Order.NEWEST: "recorded_at DESC, type, id",
    Order.OLDEST: "recorded_at, type, id",
    Order.ID_ASCENDING: "id, type",
    Order.ID_DESCENDING: "id DESC, type DESC",
}
AFTER: Final[dict[Order, str]] = {
    Order.RELEVANCE: f"""({SCORE} < :score OR ({SCORE} = :score
        AND (recorded_at < :time OR (recorded_at = :time AND (type, id) > (:type, :id)))))""",
    Order.NEWEST: "(recorded_at < :time OR (recorded_at = :time AND (type, id) > (:type, :id)))",
    Order.OLDEST: "(recorded_at > :time OR (recorded_at = :time AND (type, id) > (:type, :id)))",
    Order.ID_ASCENDING: "(id, type) > (:id, :type)",
    Order.ID_DESCENDING: "(id, type) < (:id, :type)",
}


def bindings_after(position: Position | None) -> Bindings:
    """Return what the parameters of `AFTER` are bound to."""
    if position is None:
        return {}
    return {
        "score": position.score,
        "time": position.recorded_at_unix_ms,
        "type": position.type,
        "id": position.id,
    }
