"""The two sides of a drifted entity: which heads meet, what they become, what is refused."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from patchouli.backend import MergeRule, canonical
from patchouli.backend.mutation.drift import StagedPolicy, parse_policy, reconcile
from patchouli.backend.mutation.joining import carry_out
from patchouli.backend.mutation.reconcile import ConflictPolicy
from patchouli.provider import (
    ControlKey,
    Divergence,
    DivergenceNode,
    EntityKey,
    GraphNode,
    ScopeText,
    UnitConflict,
    Version,
    VersionId,
    VersionState,
    contract,
    surviving_heads,
    walk,
)

RULES = (MergeRule(path="/text", group_by=()),)


class Sides:
    """The versions of one entity, by name; a value of None is a tombstone."""

    def __init__(self, **versions: tuple[str, Any]) -> None:
        self.versions = {
            name: Version(
                id=VersionId(name),
                state=VersionState.DELETED if value is None else VersionState.ACTIVE,
                value_json=None if value is None else canonical(value),
                parents=tuple(map(VersionId, parents.split())),
                recorded_at_unix_ms=0,
            )
            for name, (parents, value) in versions.items()
        }
        self.nodes = {
            version.id: GraphNode(id=version.id, parents=version.parents, sequence=(place, 0))
            for place, version in enumerate(self.versions.values())
        }

    def conflict(self, staged: str, published: str, superseded: str = "base") -> UnitConflict:
        sides = [
            tuple(self.versions[name] for name in sorted(side.split()))
            for side in (staged, published)
        ]
        replaced = frozenset(map(VersionId, superseded.split()))
        active = [head.id for head in surviving_heads(*sides, replaced) if head.value_json]
        return UnitConflict(
            key=EntityKey(ScopeText("{}"), "memo", "a"),
            baseline_heads=(VersionId("base"),),
            staged_heads=sides[0],
            published_heads=sides[1],
            superseded=replaced,
            conflict_policy_json="",
            is_closing=False,
            divergence=self.divergence(active) if len(active) > 1 else None,
        )

    def divergence(self, starts: list[VersionId]) -> Divergence:
        base, walked = walk(starts, lambda ids: {i: self.nodes[i] for i in ids if i in self.nodes})
        kept = contract(walked, starts if base is None else [*starts, base])
        return Divergence(
            base=base,
            nodes=tuple(
                DivergenceNode(
                    id=node.id,
                    parents=node.parents,
                    sequence=node.sequence,
                    value_json=self.versions[node.id].value_json,
                )
                for node in kept
            ),
        )


def policy(
    strategy: Any = "merge", otherwise: Any = "mvcc", *, accepted: str = "in", rules: Any = RULES
) -> StagedPolicy:
    return StagedPolicy(
        conflict=ConflictPolicy(strategy, rules, otherwise),
        request='"request"',
        accepted=VersionId(accepted),
        identity=None,
    )


def reconciled(conflict: UnitConflict, by: StagedPolicy, *, is_valid: Any = lambda _: True) -> Any:
    names = count(1)
    return carry_out(
        reconcile(
            conflict,
            by,
            now_unix_ms=7,
            is_valid=is_valid,
            new_id=lambda: VersionId(f"new{next(names)}"),
        )
    )


def memo(text: str, mark: int = 0) -> dict[str, Any]:
    return {"text": text, "mark": mark}


ALIKE = Sides(
    **{
        "base": ("", memo("red apple")),
        "in": ("base", memo("green apple")),
        "out": ("base", memo("red pear")),
    }
)
MARKED = Sides(
    **{
        "base": ("", memo("red apple")),
        "in": ("base", memo("green apple", 1)),
        "out": ("base", memo("red pear", 2)),
    }
)
DELETED_INSIDE = Sides(
    **{"base": ("", memo("a")), "in": ("base", None), "out": ("base", memo("b"))}
)
DELETED_OUTSIDE = Sides(
    **{"base": ("", memo("a")), "in": ("base", memo("b")), "out": ("base", None)}
)


@pytest.mark.parametrize(
    ("sides", "strategy", "otherwise", "heads"),
    [
        (ALIKE, "reject", "mvcc", None),
        (ALIKE, "mvcc", "mvcc", ["in", "out"]),
        (ALIKE, "mvcc", "reject", ["in", "out"]),
        (ALIKE, "merge", "mvcc", ["new1"]),
        (ALIKE, "merge", "reject", ["new1"]),
        (MARKED, "reject", "mvcc", None),
        (MARKED, "mvcc", "reject", ["in", "out"]),
        (MARKED, "merge", "mvcc", ["new1", "new2"]),
        (MARKED, "merge", "reject", None),
        *[
            (sides, strategy, otherwise, heads)
            for sides in (DELETED_INSIDE, DELETED_OUTSIDE)
            for strategy, otherwise, heads in [
                ("reject", "mvcc", None),
                ("mvcc", "mvcc", ["in", "out"]),
                ("mvcc", "reject", None),
                ("merge", "mvcc", ["in", "out"]),
                ("merge", "reject", None),
            ]
        ],
    ],
)
def test_what_two_sides_become(sides, strategy, otherwise, heads):
    found = reconciled(sides.conflict("in", "out"), policy(strategy, otherwise))

    assert (None if found is None else list(found.resolution.head_versions)) == heads


def test_a_merge_derives_one_version_from_both_sides():
    found = reconciled(ALIKE.conflict("in", "out"), policy())

    (version,) = found.resolution.new_versions
    assert json.loads(version.value_json) == memo("green pear")
    assert (version.parents, version.recorded_at_unix_ms) == (("in", "out"), 7)
    assert found.own == version
    assert found.resolution.causal_token == version.id
    assert found.resolution.expected_staged_heads == ("in",)
    assert found.resolution.expected_published_heads == ("out",)


def test_the_own_version_keeps_what_its_request_said_outside_the_merged_paths():
    found = reconciled(MARKED.conflict("in", "out"), policy())

    values = {v.id: json.loads(v.value_json) for v in found.resolution.new_versions}
    assert values[found.own.id] == memo("green pear", 1)
    assert sorted(value["mark"] for value in values.values()) == [1, 2]


def test_what_stays_as_it_was_staged_needs_no_other_token():
    found = reconciled(ALIKE.conflict("in", "out"), policy("mvcc"))

    assert found.own.id == "in"
    assert found.resolution.causal_token is None
    assert found.resolution.new_versions == ()


def test_a_tombstone_of_the_unit_is_its_own_version():
    found = reconciled(DELETED_INSIDE.conflict("in", "out"), policy())

    assert found.own == DELETED_INSIDE.versions["in"]


def test_what_one_side_resolved_does_not_come_back():
    sides = Sides(
        **{
            "one": ("", memo("1")),
            "two": ("", memo("2")),
            "three": ("", memo("3")),
            "in": ("one", memo("4")),
            "out": ("two", memo("5")),
        }
    )
    conflict = sides.conflict("two three in", "one three out", "one two")

    found = reconciled(conflict, policy("mvcc"))

    assert found.resolution.head_versions == ("in", "out", "three")


def test_equal_sides_collapse_into_one():
    sides = Sides(
        **{"base": ("", memo("a")), "in": ("base", memo("b")), "out": ("base", memo("b"))}
    )

    found = reconciled(sides.conflict("in", "out"), policy("merge", "reject"))

    (version,) = found.resolution.new_versions
    assert found.resolution.head_versions == (version.id,)
    assert found.own == version
    assert version.parents == ("in", "out")


def test_a_merge_that_violates_the_schema_leaves_both_sides_apart():
    conflict = ALIKE.conflict("in", "out")

    def is_valid(value: Any) -> bool:
        return "pear" not in value["text"]

    kept = reconciled(conflict, policy(), is_valid=is_valid)
    assert kept.resolution.head_versions == ("in", "out")
    assert kept.own.id == "in"
    assert reconciled(conflict, policy("merge", "reject"), is_valid=is_valid) is None


def test_sides_without_a_common_origin_stay_apart():
    sides = Sides(**{"in": ("", memo("a")), "out": ("", memo("b"))})
    conflict = sides.conflict("in", "out", "")

    assert reconciled(conflict, policy()).resolution.head_versions == ("in", "out")
    assert reconciled(conflict, policy("merge", "reject")) is None


def test_a_version_superseded_in_its_unit_has_become_nothing():
    found = reconciled(ALIKE.conflict("in", "out"), policy(accepted="earlier"))

    assert found.own is None
    assert found.resolution.causal_token is None


@pytest.mark.parametrize("identity", [None, ControlKey('{"scope":{},"fields":{"k":"é\\u0000"}}')])
@pytest.mark.parametrize("rules", [(), RULES, (MergeRule(path="", group_by=("/kind", "/~1")),)])
def test_a_policy_survives_its_text(identity, rules):
    written = policy("mvcc", "reject", rules=list(rules))._replace(identity=identity)

    assert parse_policy(written.text()) == written
