"""The version graph of an entity: the bounded walk from some versions to their common dominator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    Divergence,
    DivergenceNode,
    GraphNode,
    VersionId,
    contract,
    walk,
)
from patchouli.provider_sqlite.codec import ids_of, ids_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider_sqlite.connection import Connection

# The single head lies in `entity`, everything else in `version`; both by key.
NODES: Final = """
SELECT version, parents, published_cursor, ordinal FROM version
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2)) AND unit_id IS NULL
UNION ALL
SELECT version, parents, published_cursor, ordinal FROM entity
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2))
"""
VALUES: Final = """
SELECT version, value FROM version
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2)) AND unit_id IS NULL
UNION ALL
SELECT version, value FROM entity
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2))
"""


class WalkTooLongError(Exception):
    """The walk needs more look-ups than the caller may spend where it stands."""


def read_divergence(
    connection: Connection,
    entity_id: int | None,
    heads: Sequence[VersionId],
    bases: Sequence[VersionId],
    *,
    walk_limit: int | None = None,
) -> Divergence | None:
    """Return the divergence of `heads` and `bases`, None if the two are the same set.

    Must run inside a snapshot that the caller holds open.

    Raises:
        WalkTooLongError: It needs more than `walk_limit` look-ups.
    """
    if entity_id is None or set(heads) == set(bases):
        return None
    look_ups = 0

    def find(wanted: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
        nonlocal look_ups
        look_ups += 1
        if walk_limit is not None and look_ups > walk_limit:
            raise WalkTooLongError
        rows = connection.execute(NODES, (entity_id, ids_text(wanted)))
        return {
            VersionId(version): GraphNode(
                id=VersionId(version), parents=ids_of(parents), sequence=(cursor, ordinal)
            )
            for version, parents, cursor, ordinal in rows
        }

    starts = (*heads, *bases)
    base, walked = walk(starts, find)
    kept = contract(walked, starts if base is None else (*starts, base))
    values: dict[str, str | None] = dict(
        iter(connection.execute(VALUES, (entity_id, ids_text(node.id for node in kept))))
    )
    nodes = tuple(
        DivergenceNode(
            id=node.id, parents=node.parents, sequence=node.sequence, value_json=values[node.id]
        )
        for node in kept
    )
    return Divergence(base=base, nodes=nodes)
