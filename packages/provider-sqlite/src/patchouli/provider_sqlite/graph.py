"""The version graph of an entity: the bounded walk from some versions to their common dominator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    Divergence,
    DivergenceNode,
    GraphNode,
    contract,
    walk,
)
from patchouli.provider_sqlite.codec import ids_of, ids_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from patchouli.provider import VersionId
    from patchouli.provider_sqlite.budget import Budget
    from patchouli.provider_sqlite.connection import Connection

    NodeRow = tuple[str, str, int, int]
    """version, parents, the cursor of its publication, and its place in it."""

    ValueRow = tuple[str, int, str | None]
    """version, state, value."""

# The single head lies in `entity`, everything else in `version`; both by key.
NODE: Final = """
SELECT version, parents, published_cursor, ordinal FROM version
WHERE entity_id = ?1 AND version = ?2
UNION ALL
SELECT version, parents, published_cursor, ordinal FROM entity
WHERE entity_id = ?1 AND version = ?2
"""
VALUES: Final = """
SELECT version, state, iif(octet_length(value) <= ?3, value, NULL) FROM version
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2))
UNION ALL
SELECT version, state, iif(octet_length(value) <= ?3, value, NULL) FROM entity
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2))
"""


def read_divergence(
    connection: Connection,
    entity_id: int | None,
    *,
    heads: Sequence[VersionId],
    bases: Sequence[VersionId],
    budget: Budget,
) -> Divergence | None:
    """Return the divergence of `heads` and `bases`, None if the two are the same set.

    Must run inside a snapshot that the caller holds open.

    Raises:
        OverBudgetError: It costs more than `budget` allows.
    """
    if entity_id is None or set(heads) == set(bases):
        return None

    def node(version: VersionId) -> NodeRow | None:
        return connection.execute(NODE, (entity_id, version)).get

    def values(versions: str) -> Iterable[ValueRow]:
        return connection.execute(VALUES, (entity_id, versions, budget.value_bytes))

    return diverge((*heads, *bases), node=node, values=values, budget=budget)


def diverge(
    starts: Sequence[VersionId],
    *,
    node: Callable[[VersionId], NodeRow | None],
    values: Callable[[str], Iterable[ValueRow]],
    budget: Budget,
) -> Divergence:
    """Return the divergence of `starts` among the versions that `node` and `values` know.

    `values` gets a list of ids as it is stored.

    Raises:
        OverBudgetError: It costs more than `budget` allows.
    """

    def find(wanted: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
        nodes: dict[VersionId, GraphNode] = {}
        for version in wanted:
            budget.look_up()
            row = node(version)
            if row is not None:
                _, parents, cursor, ordinal = row
                nodes[version] = GraphNode(
                    id=version, parents=ids_of(parents), sequence=(cursor, ordinal)
                )
        return nodes

    base, walked = walk(starts, find)
    kept = contract(walked, starts if base is None else (*starts, base))
    rows = values(ids_text(node.id for node in kept))
    found = {version: budget.take(state, value) for version, state, value in rows}
    nodes = tuple(
        DivergenceNode(
            id=node.id, parents=node.parents, sequence=node.sequence, value_json=found[node.id]
        )
        for node in kept
    )
    return Divergence(base=base, nodes=nodes)
