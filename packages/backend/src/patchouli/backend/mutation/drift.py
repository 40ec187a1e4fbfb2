"""What becomes of an entity of a sealed work unit that others changed since the unit's baseline.

The heads that neither side replaced since the baseline meet like the candidates of an update, under
the conflict policy of the entity's last staged mutation:

    surviving heads                  reject    mvcc        merge
    all active                       refused   all of them merged variants
    with tombstones, else mvcc       refused   all of them tombstones + merged variants
    with tombstones, else reject     refused   refused     refused

Under `merge`, `otherwise: reject` also refuses what would leave more than one head. What is refused
is so for the whole unit; nothing is refused here that was not changed on both sides.

The policy travels as text with each staged mutation, because the request may be long gone when the
unit is finished: after a crash at the next start, or by another closing mutation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import orjson
from patchouli.backend.canonical import canonical
from patchouli.backend.config.models import MergeRule
from patchouli.backend.mutation.candidate import stored_candidate
from patchouli.backend.mutation.merging import merge
from patchouli.backend.mutation.reconcile import ConflictPolicy
from patchouli.provider import (
    CausalToken,
    ControlKey,
    Resolution,
    Version,
    VersionId,
    VersionState,
    surviving_heads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from patchouli.backend.config.models import Otherwise, Strategy
    from patchouli.backend.mutation.candidate import Candidate
    from patchouli.backend.mutation.merging import Join, Variant
    from patchouli.provider import Json, UnitConflict


class StagedPolicy(NamedTuple):
    """How a staged mutation meets what others did, and what its final answer is made from.

    `request` names the mutation as the unit remembers who sealed it, `accepted` is the version it
    staged, `identity` its idempotency identity. Its answer carries no causal token: a behavior
    whose publication is by batch has none.
    """

    conflict: ConflictPolicy
    request: str
    accepted: VersionId
    identity: ControlKey | None

    def text(self) -> str:
        """Return the text from which `parse_policy` makes the policy again."""
        strategy, rules, otherwise = self.conflict
        return canonical(
            {
                "accepted": self.accepted,
                "identity": self.identity,
                "merge": [{"group_by": list(r.group_by), "path": r.path} for r in rules],
                "otherwise": otherwise,
                "request": self.request,
                "strategy": strategy,
            }
        )


def parse_policy(text: str) -> StagedPolicy:
    """Return the policy that was written as `text`."""
    found = orjson.loads(text)
    return StagedPolicy(
        conflict=ConflictPolicy(
            strategy=cast("Strategy", found["strategy"]),
            rules=[
                MergeRule(path=rule["path"], strategy="automerge", group_by=tuple(rule["group_by"]))
                for rule in found["merge"]
            ],
            otherwise=cast("Otherwise", found["otherwise"]),
        ),
        request=found["request"],
        accepted=VersionId(found["accepted"]),
        identity=None if found["identity"] is None else ControlKey(found["identity"]),
    )


class Reconciled(NamedTuple):
    """The resolution of one drifted entity.

    `own` is the version that the last mutation staged for it has become: that version itself, or
    the one derived from it. None if it did not survive.
    """

    resolution: Resolution
    own: Version | None


def reconcile(
    conflict: UnitConflict,
    policy: StagedPolicy,
    *,
    now_unix_ms: int,
    is_valid: Callable[[Json], bool],
    new_id: Callable[[], VersionId],
) -> Generator[Join, str | None, Reconciled | None]:
    """Return how the two sides of a drifted entity become one, or None if the policy refuses that.

    Yields each join that it needs and is sent the joined content as JSON text, or None if it is too
    large. What the last mutation has become is a token like what any mutation is answered with.
    """
    strategy, rules, otherwise = policy.conflict
    heads = surviving_heads(conflict.staged_heads, conflict.published_heads, conflict.superseded)
    tombstones = [head for head in heads if head.state is VersionState.DELETED]
    active = [head for head in heads if head.state is VersionState.ACTIVE]
    if strategy == "reject" or (tombstones and otherwise == "reject"):
        return None
    new_versions: list[Version] = []
    become = {head.id: head for head in heads}
    if strategy == "merge" and len(active) > 1:
        candidates = [stored_candidate(head) for head in active]
        graph = {} if conflict.divergence is None else {n.id: n for n in conflict.divergence.nodes}
        variants = yield from merge(candidates, rules, graph, is_valid=is_valid)
        if otherwise == "reject" and len(variants) > 1:
            return None
        for variant in variants:
            if variant.is_derived:
                version = _derived(variant, candidates, new_id(), now_unix_ms=now_unix_ms)
                new_versions.append(version)
                become.update((active[index].id, version) for index in variant.own)
    own = become.get(policy.accepted)
    is_new = own is not None and own.id != policy.accepted
    resolution = Resolution(
        key=conflict.key,
        expected_published_heads=tuple(head.id for head in conflict.published_heads),
        expected_staged_heads=tuple(head.id for head in conflict.staged_heads),
        new_versions=tuple(new_versions),
        head_versions=tuple(sorted({version.id for version in become.values()})),
        causal_token=CausalToken(own.id) if own is not None and is_new else None,
    )
    return Reconciled(resolution, own)


def _derived(
    variant: Variant, candidates: Sequence[Candidate], version: VersionId, *, now_unix_ms: int
) -> Version:
    made_from = sorted({*variant.own, *variant.joined})
    return Version(
        id=version,
        state=VersionState.ACTIVE,
        value_json=canonical(variant.value),
        parents=tuple(candidates[index].version.id for index in made_from),
        recorded_at_unix_ms=now_unix_ms,
    )
