"""The part of a version graph that lies between some versions and their nearest common dominator.

A provider calls `walk` with a function that looks versions up; the engine joins what comes back.
The walk goes newest first, so a version is expanded only after every version that descends from it,
and stops when a single version is left: every path from a starting version leads through it. Its
cost follows the divergence and never the history of the entity.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from patchouli.provider.record import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from patchouli.provider.identity import VersionId

WALK_LIMIT = 4096  # versions; a base farther away is answered as if it were unknown
KEEP_ALL_LIMIT = 64  # versions; a longer walk leaves out its linear runs


@record
class GraphNode:
    """A version as the walk sees it; `sequence` grows from parents to children."""

    id: VersionId
    parents: tuple[VersionId, ...]
    sequence: tuple[int, int]


@record
class DivergenceNode:
    """A kept version. `parents` are its nearest kept ancestors, in order, without repetition."""

    id: VersionId
    parents: tuple[VersionId, ...]
    sequence: tuple[int, int]
    value_json: str | None


@record
class Divergence:
    """The kept versions of a walk, ascending by sequence.

    `base` is the nearest common dominator of the starting versions. It is None when they have none:
    unrelated roots, a root that retention made by folding its ancestors away, or a walk that
    reached `WALK_LIMIT`.
    """

    base: VersionId | None
    nodes: tuple[DivergenceNode, ...]


def walk(
    starts: Iterable[VersionId],
    find: Callable[[Sequence[VersionId]], Mapping[VersionId, GraphNode]],
    *,
    limit: int = WALK_LIMIT,
) -> tuple[VersionId | None, list[GraphNode]]:
    """Return the nearest common dominator of `starts` and every version of the walk to it.

    `find` returns the nodes of the ids it knows; it is called once for the starts and then once for
    the parents of each expanded version. The nodes come back ascending by sequence and include the
    dominator. Without a dominator, or past `limit` versions, the first member is None.
    """
    nodes: dict[VersionId, GraphNode] = dict(find(tuple(dict.fromkeys(starts))))
    frontier: list[tuple[tuple[int, int], VersionId]] = [
        (_newest_first(node), node.id) for node in nodes.values()
    ]
    heapq.heapify(frontier)
    has_root = False
    while len(frontier) > 1 and len(nodes) <= limit:
        _, newest = heapq.heappop(frontier)
        parents = nodes[newest].parents
        unseen = tuple(parent for parent in dict.fromkeys(parents) if parent not in nodes)
        found: Mapping[VersionId, GraphNode] = find(unseen) if unseen else {}
        has_root = has_root or not parents or len(found) < len(unseen)
        for node in found.values():
            nodes[node.id] = node
            heapq.heappush(frontier, (_newest_first(node), node.id))
    base = frontier[0][1] if len(frontier) == 1 and not has_root else None
    return base, sorted(nodes.values(), key=lambda node: node.sequence)


def contract(
    walked: Sequence[GraphNode], keep: Iterable[VersionId], *, keep_all_limit: int = KEEP_ALL_LIMIT
) -> list[GraphNode]:
    """Return the versions worth their value: all of a short walk, a long one without linear runs.

    A version of a linear run has one parent and one child inside the walk. `keep` (the base and the
    candidates) always stays. Parents of a kept version become its nearest kept ancestors.
    """
    by_id = {node.id: node for node in walked}
    children = dict.fromkeys(by_id, 0)
    for node in walked:
        for parent in node.parents:
            if parent in children:
                children[parent] += 1
    wanted = set(keep)
    skipped: set[VersionId] = set()
    if len(walked) > keep_all_limit:
        skipped = {
            node.id
            for node in walked
            if node.id not in wanted
            and children[node.id] == 1
            and sum(parent in by_id for parent in node.parents) == 1
        }

    def kept_parents(node: GraphNode) -> tuple[VersionId, ...]:
        parents: dict[VersionId, None] = {}
        for parent in node.parents:
            while parent in skipped:
                parent = next(p for p in by_id[parent].parents if p in by_id)
            if parent in by_id:
                parents[parent] = None
        return tuple(parents)

    return [
        GraphNode(id=node.id, parents=kept_parents(node), sequence=node.sequence)
        for node in walked
        if node.id not in skipped
    ]


def _newest_first(node: GraphNode) -> tuple[int, int]:
    position, ordinal = node.sequence
    return (-position, -ordinal)
