"""Merging of declared paths: which candidates belong together, and from which versions.

For each merge rule the candidates fall into groups: those whose value has the path and whose
discriminators are the same JSON. The contents of a group are joined when at least two of them
differ and when they share history: their nearest common dominator in the version graph has the
path and the same discriminators. Otherwise, when the join exceeds its bounds, and when a joined
value would violate the schema, the members of the group stay as they are.

Nothing is joined here. `merge` is a generator that yields a `Join` for each join it needs and is
sent the joined content as JSON text, or None if the join is too large; who drives it decides on
which thread joins run.

What a variant was made from becomes its parents, so that a later join finds the same history:

* the same edit, equal content from the same parents, enters a join once: of a stored version if
  there is one, because only a stored version can be the base of somebody else's work;
* equal contents from different parents are made one before they meet the others, so that what
  either side took out stays out and what both put in is there once;
* a proposal whose content enters a join is kept as a version of its own, never a head, so that
  every variant made from it holds its edit by the same name;
* a proposal that enters none passes its bases on instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson
from patchouli.automerge import JoinNode
from patchouli.backend.canonical import canonical, jeq
from patchouli.backend.pointers import UNBOUND, compile_pointer, resolve
from patchouli.provider import INTEGER_MAX, DivergenceNode, GraphNode, VersionId, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from patchouli.backend.config.models import MergeRule
    from patchouli.backend.mutation.candidate import Candidate
    from patchouli.backend.pointers import Tokens
    from patchouli.provider import Json

_AFTER_ALL_STORED = (INTEGER_MAX + 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A join that is needed: the arguments of `patchouli.automerge.join`."""

    path: str
    base: VersionId
    nodes: tuple[JoinNode, ...]
    candidates: tuple[VersionId, ...]


@dataclass(slots=True, kw_only=True)
class Variant:
    """A value that results, and the indices of the candidates it was made from.

    `own` are the candidates whose value it is, apart from the merged paths, and `joined` those
    whose content went into a merged path. `is_derived` says that it is not simply its candidate.
    """

    value: Json
    own: list[int]
    joined: set[int] = field(default_factory=set[int])
    is_derived: bool = False


def merge(
    candidates: Sequence[Candidate],
    rules: Sequence[MergeRule],
    graph: Mapping[VersionId, DivergenceNode],
    *,
    is_valid: Callable[[Json], bool],
) -> Generator[Join, str | None, list[Variant]]:
    """Return the variants that `candidates` become, in order of their first candidate.

    Variants whose whole values are the same JSON are one. `graph` holds the kept versions of the
    candidates' divergence; a proposed candidate need not be among them.
    """
    variants = [
        Variant(value=candidate.value, own=[index]) for index, candidate in enumerate(candidates)
    ]
    if len(variants) < 2:
        return variants
    history = _History(candidates, graph)
    for rule in rules:
        location = _Location(rule)
        for members in location.groups(variants):
            yield from _merge_group(location, members, candidates, history, is_valid=is_valid)
    return _collapse(variants)


def _merge_group(
    location: _Location,
    members: list[Variant],
    candidates: Sequence[Candidate],
    history: _History,
    *,
    is_valid: Callable[[Json], bool],
) -> Generator[Join, str | None, None]:
    contents = location.distinct(members, candidates)
    if len(contents) < 2:
        return
    join = history.join(location, contents)
    if join is None:
        return
    joined = yield join
    if joined is None:
        return
    content: Json = orjson.loads(joined)
    merged = [location.replaced(variant.value, content) for variant in members]
    if not all(map(is_valid, merged)):
        return
    for variant, value in zip(members, merged, strict=True):
        variant.value = value
        variant.joined.update(index for edits in contents for index in edits)
        variant.is_derived = True


def _collapse(variants: list[Variant]) -> list[Variant]:
    """Return the variants with those of equal value made one, at the earliest position."""
    kept: list[Variant] = []
    for variant in variants:
        same = next((other for other in kept if jeq(other.value, variant.value)), None)
        if same is None:
            kept.append(variant)
        else:
            same.own += variant.own
            same.joined |= variant.joined
            same.is_derived = True
    return kept


class _Location:
    """The path and the discriminators of one merge rule."""

    def __init__(self, rule: MergeRule) -> None:
        self.path = rule.path
        self._tokens: Tokens = compile_pointer(rule.path)
        self._discriminators = tuple(map(compile_pointer, rule.group_by))

    def content(self, value: Json) -> tuple[Json, list[Json]] | None:
        """Return what `value` has at the path and its discriminators, or None if it takes no part.

        A value takes part only if the path and every discriminator inside it are there.
        """
        content = resolve(value, self._tokens)
        if content is UNBOUND:
            return None
        discriminators: list[Json] = []
        for tokens in self._discriminators:
            discriminator = resolve(content, tokens)
            if discriminator is UNBOUND:
                return None
            discriminators.append(discriminator)
        return content, discriminators

    def groups(self, variants: Sequence[Variant]) -> list[list[Variant]]:
        """Return the variants that take part, grouped by equal discriminators, each in order."""
        groups: list[tuple[list[Json], list[Variant]]] = []
        for variant in variants:
            found = self.content(variant.value)
            if found is None:
                continue
            for discriminators, members in groups:
                if jeq(discriminators, found[1]):
                    members.append(variant)
                    break
            else:
                groups.append((found[1], [variant]))
        return [members for _, members in groups]

    def distinct(
        self, members: Sequence[Variant], candidates: Sequence[Candidate]
    ) -> list[list[int]]:
        """Return for each content that occurs among `members` the candidates that differ as edits.

        Both are in order; of candidates that made the same edit a stored one stands for all.
        """
        found: list[tuple[Json, dict[frozenset[VersionId], int]]] = []
        for variant in members:
            index = variant.own[0]
            content = resolve(variant.value, self._tokens)
            assert content is not UNBOUND  # noqa: S101 -- members take part
            edits = next((edits for known, edits in found if jeq(known, content)), None)
            if edits is None:
                edits = dict[frozenset[VersionId], int]()
                found.append((content, edits))
            parents = frozenset(candidates[index].version.parents)
            if parents not in edits or candidates[edits[parents]].is_proposed:
                edits[parents] = index
        return [sorted(edits.values()) for _, edits in found]

    def replaced(self, value: Json, content: Json) -> Json:
        """Return `value` with `content` at the path, which is there; `value` stays as it is."""
        return _replaced(value, self._tokens, content)


def _replaced(value: Json, tokens: Tokens, content: Json) -> Json:
    if not tokens:
        return content
    first, *rest = tokens
    if isinstance(value, dict):
        return {**value, first: _replaced(value[first], tuple(rest), content)}
    assert isinstance(value, list)  # noqa: S101 -- the path resolved
    items = value.copy()
    items[int(first)] = _replaced(items[int(first)], tuple(rest), content)
    return items


class _History:
    """The versions between the candidates and where they parted."""

    def __init__(
        self, candidates: Sequence[Candidate], graph: Mapping[VersionId, DivergenceNode]
    ) -> None:
        self._candidates = candidates
        self._nodes = {
            node.id: GraphNode(id=node.id, parents=node.parents, sequence=node.sequence)
            for node in graph.values()
        }
        self._values: dict[VersionId, Json] = {}
        self._json = {node.id: node.value_json for node in graph.values()}
        for candidate in candidates:
            version = candidate.version
            if candidate.is_proposed:
                self._nodes[version.id] = GraphNode(
                    id=version.id, parents=version.parents, sequence=_AFTER_ALL_STORED
                )
            self._values[version.id] = candidate.value

    def join(self, location: _Location, contents: Sequence[Sequence[int]]) -> Join | None:
        """Return the join of candidates at a path, or None if they share no history there.

        Each member of `contents` lists the candidates that have one content.
        """
        groups = [[self._candidates[index].version.id for index in edits] for edits in contents]
        ids = [version for group in groups for version in group]
        base, walked = walk(ids, self._find, limit=len(self._nodes))
        if base is None:
            return None
        contents_at = {node.id: self._content(location, node.id) for node in walked}
        origin, own = contents_at[base], contents_at[ids[0]]
        if origin is None or own is None or not jeq(origin[1], own[1]):
            return None
        nodes: list[JoinNode] = []
        # A version between that has no such content (deleted, the path missing, of another kind)
        # is passed over: its children are taken as edits of what it was itself an edit of.
        standing: dict[VersionId, tuple[VersionId, ...]] = {}
        for node in walked:
            parents = tuple(
                dict.fromkeys(
                    ancestor for parent in node.parents for ancestor in standing.get(parent, ())
                )
            )
            content = contents_at[node.id]
            if content is None or not jeq(content[1], origin[1]):
                standing[node.id] = parents
            else:
                standing[node.id] = (node.id,)
                nodes.append(JoinNode(version=node.id, parents=parents, json=canonical(content[0])))
        starts: list[VersionId] = []
        for group in groups:
            if len(group) == 1:
                starts += group
            else:
                starts.append(VersionId("=".join(sorted(group))))
                content = contents_at[group[0]]
                assert content is not None  # noqa: S101 -- candidates take part
                nodes.append(
                    JoinNode(version=starts[-1], parents=tuple(group), json=canonical(content[0]))
                )
        return Join(path=location.path, base=base, nodes=tuple(nodes), candidates=tuple(starts))

    def _find(self, ids: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
        return {version: self._nodes[version] for version in ids if version in self._nodes}

    def _content(self, location: _Location, version: VersionId) -> tuple[Json, list[Json]] | None:
        if version not in self._values:
            text = self._json[version]
            if text is None:
                return None
            self._values[version] = orjson.loads(text)
        return location.content(self._values[version])
