"""The outcome of an update or a delete, given the heads that it meets.

`H` are the present heads, `B` the base versions of the request, `C` the heads outside `B`. Ancestry
is not consulted: a head in `B` is superseded, every other one is concurrent, however old `B` is.

    update                           reject    mvcc               merge
    B = H                            new head  new head           new head
    B ⊃ H                            conflict  new head           new head
    C all active                     conflict  new head + C       merged variants
    C with tombstones, else mvcc     conflict  new head + C       tombstones + merged variants
    C with tombstones, else reject   conflict  conflict           conflict
    an unknown base                  conflict  conflict           conflict

Under `merge`, `otherwise: reject` refuses what would leave more than one head: a concurrent
difference outside the merged paths, without common history, or whose merge violates the schema.
It never refuses a mutation without concurrent heads. A delete keeps `C` beside its tombstone, or
is refused under `reject` of either kind; it never merges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from patchouli.backend.canonical import canonical
from patchouli.backend.errors import VersionConflictError
from patchouli.backend.mutation.candidate import Candidate, stored_candidate
from patchouli.backend.mutation.merging import Join, Variant, merge
from patchouli.provider import ChangeKind, Version, VersionId, VersionState, change_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from patchouli.backend.config.models import MergeRule, Otherwise, Strategy
    from patchouli.provider import Divergence, DivergenceNode, Json, Raced, Reading


class ConflictPolicy(NamedTuple):
    """How one request meets concurrent heads."""

    strategy: Strategy
    rules: Sequence[MergeRule]
    otherwise: Otherwise


class Resolution(NamedTuple):
    """New versions, parents before children, and the complete new head set in order.

    `accepted` is the version that the request is answered with.
    """

    new_versions: tuple[Version, ...]
    head_versions: tuple[VersionId, ...]
    accepted: Version
    kind: ChangeKind


def created(version: Version) -> Resolution:
    """Return the first version of an entity as its only head."""
    return Resolution(
        new_versions=(version,),
        head_versions=(version.id,),
        accepted=version,
        kind=ChangeKind.CREATED,
    )


def resolve_delete(
    tombstone: Version, found: Reading | Raced, policy: ConflictPolicy
) -> Resolution:
    """Return `tombstone` as a head beside every concurrent one.

    Raises:
        VersionConflictError: A base is unknown, or the policy refuses what is concurrent.
    """
    concurrent = _require_concurrent(tombstone.parents, found, policy)
    if concurrent and policy.otherwise == "reject":
        raise conflict(found.heads)
    return _resolution((tombstone,), (*concurrent, tombstone), tombstone, found)


def resolve_update(
    proposal: Version, found: Reading | Raced, policy: ConflictPolicy
) -> Resolution | None:
    """Return `proposal` as a head beside every concurrent one, or None if it has to be merged.

    The parents of `proposal` are its bases.

    Raises:
        VersionConflictError: A base is unknown, or the policy refuses what is concurrent.
    """
    concurrent = _require_concurrent(proposal.parents, found, policy)
    if not concurrent:
        return _resolution((proposal,), (proposal,), proposal, found)
    tombstones, active = _by_state(concurrent)
    if tombstones and policy.otherwise == "reject":
        raise conflict(found.heads)
    if active and policy.strategy == "merge":
        return None
    return _resolution((proposal,), (*tombstones, proposal, *active), proposal, found)


def merge_update(
    proposal: Version,
    value: Json,
    found: Reading | Raced,
    policy: ConflictPolicy,
    *,
    is_valid: Callable[[Json], bool],
    new_id: Callable[[], VersionId],
) -> Generator[Join, str | None, Resolution]:
    """Return what becomes of a proposal for which `resolve_update` said that it has to be merged.

    `value` is the JSON of `proposal`. Yields each join that it needs and is sent the joined content
    as JSON text, or None if it is too large.

    Raises:
        VersionConflictError: The policy refuses the heads that remain, or a base that is no head
            shares no kept history with them.
    """
    concurrent = [head for head in found.heads if head.id not in proposal.parents]
    tombstones, active = _by_state(concurrent)
    candidates = [
        Candidate(version=proposal, value=value, is_proposed=True),
        *map(stored_candidate, active),
    ]
    graph = _require_graph(proposal, found, policy)
    merged = yield from merge(candidates, policy.rules, graph, is_valid=is_valid)
    if policy.otherwise == "reject" and len(merged) > 1:
        raise conflict(found.heads)
    new_versions, variants = _versions_of(merged, candidates, new_id)
    return _resolution(new_versions, (*tombstones, *variants), variants[0], found)


def conflict(heads: Sequence[Version]) -> VersionConflictError:
    """Return the refusal of a mutation that did not start from `heads`."""
    return VersionConflictError(
        "the mutation does not start from the current versions; read them and try again",
        current_versions=sorted(head.id for head in heads),
    )


def _resolution(
    new_versions: tuple[Version, ...],
    heads: tuple[Version, ...],
    accepted: Version,
    found: Reading | Raced,
) -> Resolution:
    return Resolution(
        new_versions=new_versions,
        head_versions=tuple([head.id for head in heads]),
        accepted=accepted,
        kind=change_kind(
            previous_heads=len(found.heads),
            new_heads=len(heads),
            is_single_tombstone=accepted.state is VersionState.DELETED,
        ),
    )


def _by_state(heads: Sequence[Version]) -> tuple[list[Version], list[Version]]:
    """Return the tombstones and the active ones."""
    tombstones = [head for head in heads if head.state is VersionState.DELETED]
    active = [head for head in heads if head.state is VersionState.ACTIVE]
    return tombstones, active


def _require_concurrent(
    bases: tuple[VersionId, ...], found: Reading | Raced, policy: ConflictPolicy
) -> list[Version]:
    """Return the heads outside `bases`, ascending."""
    if len(found.bases) < len(bases):
        raise conflict(found.heads)
    concurrent = [head for head in found.heads if head.id not in bases]
    if policy.strategy == "reject" and (concurrent or len(bases) > len(found.heads)):
        raise conflict(found.heads)
    return concurrent


def _require_graph(
    proposal: Version, found: Reading | Raced, policy: ConflictPolicy
) -> dict[VersionId, DivergenceNode]:
    """Return the kept versions between the heads and the bases.

    A base that is no head, and whose common ancestor with the heads lies beyond the walk or was
    folded away, counts as unknown.
    """
    divergence: Divergence | None = found.divergence
    if not policy.rules or divergence is None:
        return {}
    if divergence.base is None:
        heads = {head.id for head in found.heads}
        if not heads.issuperset(proposal.parents):
            raise conflict(found.heads)
    return {node.id: node for node in divergence.nodes}


def _versions_of(
    variants: Sequence[Variant],
    candidates: Sequence[Candidate],
    new_id: Callable[[], VersionId],
) -> tuple[tuple[Version, ...], tuple[Version, ...]]:
    """Return the new versions, and the version that each variant is.

    The first variant is that of the proposal, candidate 0, whatever it was joined with.
    """
    proposal = candidates[0].version
    keeps_proposal = any(0 in variant.joined for variant in variants)
    new_versions = [proposal] if keeps_proposal else []
    heads: list[Version] = []
    for variant in variants:
        if not variant.is_derived:
            version = candidates[variant.own[0]].version
            is_new = version is proposal
        else:
            made_from = sorted({*variant.own, *variant.joined})
            parents: list[VersionId] = []
            for index in made_from:
                if index == 0 and not keeps_proposal:
                    parents += proposal.parents
                else:
                    parents.append(candidates[index].version.id)
            version = Version(
                id=proposal.id if 0 in variant.own and not keeps_proposal else new_id(),
                state=VersionState.ACTIVE,
                value_json=canonical(variant.value),
                parents=tuple(parents),
                recorded_at_unix_ms=proposal.recorded_at_unix_ms,
            )
            is_new = True
        if is_new:
            new_versions.append(version)
        heads.append(version)
    return tuple(new_versions), tuple(heads)
