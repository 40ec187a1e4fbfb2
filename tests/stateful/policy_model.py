"""What the policy promises, written down as plainly as possible: the oracle of the engine.

Everything is a dict or a list in memory and every rule is a few lines. Merged contents are sets of
items, so that a join can be told without documents: what is in it was put in by somebody since the
sides parted, or before, and was taken out by nobody who had it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

TTL_MS = 10_000

Key = tuple[str, str]
Put = tuple[str, int]  # an item and the version that put it in
Strategy = Literal["merge", "mvcc", "reject"]


@dataclass(eq=False)
class Version:
    """One version; `token` is what the engine calls it, as soon as that is known."""

    order: int
    parents: tuple[Version, ...]
    items: frozenset[str] | None
    """None marks a deletion."""
    mark: int = 0
    token: str = ""

    @property
    def value(self) -> tuple[frozenset[str], int] | None:
        """What a reader sees of it; None for a deletion."""
        return None if self.items is None else (self.items, self.mark)


class Document:
    """The items of a version as put in and taken out since `base`.

    An item that several put in at once is put in anew by whoever keeps it.
    """

    def __init__(self, parents: Iterable[Document], items: frozenset[str] | None, by: int) -> None:
        self.put: frozenset[Put] = frozenset()
        self.taken: frozenset[Put] = frozenset()
        for parent in parents:
            self.put |= parent.put
            self.taken |= parent.taken
        if items is None:
            return
        present = self.put - self.taken
        single = {name for name in items if sum(put_name == name for put_name, _ in present) == 1}
        self.taken |= {put for put in present if put[0] not in single}
        self.put |= {(name, by) for name in items - single}

    @property
    def items(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.put - self.taken)


def joined(base: Version, contents: Iterable[list[Version]]) -> frozenset[str]:
    """Return the items of the join of versions that parted at `base`.

    Each member of `contents` lists versions with the same items, which become one first.
    """
    documents = {base: Document((), base.items, base.order)}

    def document(version: Version) -> Document:
        if version not in documents:
            parents = [document(parent) for parent in standing(version)]
            documents[version] = Document(parents, version.items, version.order)
        return documents[version]

    def standing(version: Version) -> list[Version]:
        """Return what a version is an edit of; deletions are passed over."""
        found: dict[Version, None] = {}
        for parent in version.parents:
            found |= dict.fromkeys([parent] if parent.items is not None else standing(parent))
        return [*found]

    sides = [
        Document(map(document, same), same[0].items if len(same) > 1 else None, -place)
        for place, same in enumerate(contents, start=1)
    ]
    return Document(sides, None, 0).items


class Request(NamedTuple):
    """One mutation as a client asks for it."""

    operation: Literal["create", "delete", "update"]
    key: Key
    items: frozenset[str] = frozenset()
    mark: int = 0
    bases: tuple[Version, ...] = ()
    strategy: Strategy = "merge"
    unit: str | None = None
    call: str | None = None
    is_closing: bool = False

    @property
    def fingerprint(self) -> object:
        value = None if self.operation == "delete" else (self.items, self.mark)
        return self.operation, self.key, value

    @property
    def name(self) -> object:
        """How a unit remembers who sealed it."""
        return self.fingerprint if self.call is None else self.call


class RefusedError(Exception):
    """Why a request is refused, and which versions are in the way."""

    def __init__(
        self,
        reason: str,
        heads: tuple[Version, ...] = (),
        conflicts: tuple[tuple[Key, tuple[Version, ...]], ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.heads = heads
        self.conflicts = conflicts


class CrashError(Exception):
    """The process ended between the seal of a drifted unit and its publication."""


@dataclass
class Record:
    """The answer of an accepted mutation; `unit` is where it is staged, None once published."""

    fingerprint: object
    key: Key
    answer: Version
    unit: str | None


@dataclass
class Staged:
    """What a unit holds of one entity."""

    heads: list[Version]
    strategy: Strategy
    is_held: bool
    name: object
    accepted: Version


@dataclass
class Unit:
    """A work unit over the published heads and versions of the moment when it was opened."""

    expires: int
    baseline: dict[Key, list[Version]]
    known: dict[Key, set[Version]]
    state: Literal["open", "closing", "committed", "expired"] = "open"
    staged: dict[Key, Staged] = field(default_factory=dict)
    versions: dict[Key, set[Version]] = field(default_factory=dict)
    sealed_by: object = None
    closing_key: Key = ("", "")
    accepted: Version | None = None

    def heads(self, key: Key) -> list[Version]:
        return self.staged[key].heads if key in self.staged else self.baseline.get(key, [])


class Policy:
    """A store under the policy: `strict` types refuse what they cannot merge."""

    def __init__(self, *, strict: frozenset[str]) -> None:
        self.strict = strict
        self.now = 0
        self.orders = 0
        self.heads: dict[Key, list[Version]] = {}
        self.known: dict[Key, set[Version]] = {}
        self.log: list[tuple[Key, str, frozenset[Version]]] = []
        self.units: dict[str, Unit] = {}
        self.records: dict[str, Record] = {}
        self.crashes_next = False

    # Requests

    def read(self, key: Key, unit: str | None) -> list[Version]:
        heads = self.heads.get(key, []) if unit is None else self.view(unit).heads(key)
        if not heads:
            raise RefusedError("NOT_FOUND")
        return heads

    def retrieve(self, unit: str | None) -> set[Key]:
        """Return every entity with an active head."""
        keys = {*self.heads}
        if unit is not None:
            keys |= {*self.view(unit).staged}
        return {
            key
            for key in keys
            if any(
                head.items is not None
                for head in (self.heads[key] if unit is None else self.units[unit].heads(key))
            )
        }

    def mutate(self, request: Request) -> Version:
        """Return the version that answers a mutation."""
        unit = None if request.unit is None else self.opened(request.unit)
        if unit is not None and unit.state == "expired":
            raise RefusedError("WORK_UNIT_EXPIRED")
        record = self.records.get(request.call) if request.call is not None else None
        if record is not None:
            is_elsewhere = record.unit is not None and record.unit != request.unit
            if is_elsewhere or record.fingerprint != request.fingerprint:
                raise RefusedError("IDEMPOTENCY_CONFLICT")
            if record.unit is None or not request.is_closing or unit is None:
                return record.answer
            if unit.state == "open":
                self.seal(unit, request, record.key, record.answer)
            return self.finish(unit, request)
        if unit is not None and unit.state == "committed":
            raise RefusedError("INVALID_REQUEST")
        if unit is not None and unit.state == "closing":
            if not request.is_closing:
                raise RefusedError("INVALID_REQUEST")
            return self.finish(unit, request)
        return self.accept(unit, request)

    def accept(self, unit: Unit | None, request: Request) -> Version:
        key = request.key
        present = self.heads.get(key, []) if unit is None else unit.heads(key)
        known = (
            self.known.get(key, set())
            if unit is None
            else (unit.known.get(key, set()) | unit.versions.get(key, set()))
        )
        heads, new, accepted = self.decide(request, present, known)
        if request.call is not None:
            self.records[request.call] = Record(request.fingerprint, key, accepted, request.unit)
        if unit is None:
            self.publish(key, heads, new)
            return accepted
        earlier = unit.staged.get(key)
        is_held = request.strategy == "reject" or (earlier is not None and earlier.is_held)
        unit.staged[key] = Staged(
            heads,
            "reject" if is_held else request.strategy,
            is_held,
            request.name,
            accepted,
        )
        unit.versions.setdefault(key, set()).update(new)
        if not request.is_closing:
            return accepted
        self.seal(unit, request, key, accepted)
        return self.finish(unit, request)

    # Conflicts

    def decide(
        self, request: Request, present: list[Version], known: set[Version]
    ) -> tuple[list[Version], list[Version], Version]:
        """Return new heads, new versions, and the one that answers."""
        conflict = RefusedError("VERSION_CONFLICT", tuple(present))
        if request.operation == "create":
            if present:
                raise conflict
            version = self.version((), request.items, request.mark)
            return [version], [version], version
        if not present:
            raise RefusedError("NOT_FOUND")
        bases = request.bases
        if not known.issuperset(bases):
            raise conflict
        concurrent = [head for head in present if head not in bases]
        if request.strategy == "reject" and {*bases} != {*present}:
            raise conflict
        is_strict = request.key[0] in self.strict
        if request.operation == "delete":
            if concurrent and is_strict:
                raise conflict
            marker = self.version(bases, None, 0)
            return [*concurrent, marker], [marker], marker
        active = [head for head in concurrent if head.items is not None]
        tombstones = [head for head in concurrent if head.items is None]
        if tombstones and is_strict:
            raise conflict
        if active and request.strategy == "merge":
            starts = [head for head in present if head.items is not None] + [*bases]
            if dominator(starts) is None and not {*bases} <= {*present}:
                raise conflict  # its history is unknown
        proposal = self.version(bases, request.items, request.mark)
        if not active or request.strategy != "merge":
            return [*tombstones, proposal, *active], [proposal], proposal
        become = self.merged([proposal, *active], proposal)
        variants = [*dict.fromkeys(become.values())]
        if is_strict and len(variants) > 1:
            raise conflict
        new = [proposal, *(version for version in variants if version not in active)]
        return [*tombstones, *variants], new, become[proposal]

    def merged(
        self, candidates: list[Version], proposal: Version | None = None
    ) -> dict[Version, Version]:
        """Return what each candidate becomes when their items are merged.

        Of those that made the same edit one is joined, a stored one if there is one. A proposal
        that is not joined passes its bases on instead of itself.
        """
        base = dominator(candidates)
        contents = {candidate.items for candidate in candidates}
        joins = len(contents) > 1 and base is not None and base.items is not None
        edits: dict[object, Version] = {}
        for candidate in candidates:
            edit = candidate.items, frozenset(candidate.parents)
            if edit not in edits or edits[edit] is proposal:
                edits[edit] = candidate
        kept = [*edits.values()] if joins else []
        items: frozenset[str] | None = None
        if joins and base is not None:
            items = joined(base, [[v for v in kept if v.items == each] for each in contents])
        become: dict[Version, Version] = {}
        for mark, content in dict.fromkeys(
            (candidate.mark, items if joins else candidate.items) for candidate in candidates
        ):
            own = [c for c in candidates if c.mark == mark and (joins or c.items == content)]
            if not joins and len(own) == 1:
                become[own[0]] = own[0]
                continue
            parents: dict[Version, None] = {}
            for version in dict.fromkeys([*own, *kept]):
                passed = version is proposal and version not in kept
                parents |= dict.fromkeys(version.parents if passed else (version,))
            become |= dict.fromkeys(own, self.version(tuple(parents), content, mark))
        return become

    # Work units

    def opened(self, name: str) -> Unit:
        unit = self.units.get(name)
        if unit is None:
            unit = self.units[name] = Unit(
                expires=self.now + TTL_MS,
                baseline={key: [*heads] for key, heads in self.heads.items()},
                known={key: {*versions} for key, versions in self.known.items()},
            )
        return unit

    def view(self, name: str) -> Unit:
        unit = self.opened(name)
        if unit.state == "expired":
            raise RefusedError("WORK_UNIT_EXPIRED")
        if unit.state != "open":
            raise RefusedError("INVALID_REQUEST")
        return unit

    def expire(self) -> None:
        """Discard every unit that is past its time."""
        for name, unit in self.units.items():
            if unit.state in ("open", "closing") and self.now >= unit.expires:
                self.discard(name, unit)

    def discard(self, name: str, unit: Unit) -> None:
        unit.state = "expired"
        self.records = {c: r for c, r in self.records.items() if r.unit != name}

    def restart(self) -> tuple[int, int]:
        """Finish what is sealed; return how many units were published and discarded."""
        self.expire()
        published = discarded = 0
        for name, unit in self.units.items():
            if unit.state == "closing":
                if self.try_publish(unit):
                    discarded += 1
                    self.discard(name, unit)
                else:
                    published += 1
        return published, discarded

    def seal(self, unit: Unit, request: Request, key: Key, accepted: Version) -> None:
        unit.state = "closing"
        unit.sealed_by = request.name
        unit.closing_key = key
        unit.accepted = accepted

    def finish(self, unit: Unit, request: Request) -> Version:
        """Publish a sealed unit, and return the answer if it was this request that sealed it."""
        refused = self.try_publish(unit)
        if unit.sealed_by != request.name:
            raise RefusedError("INVALID_REQUEST")
        if refused:
            raise RefusedError(
                "VERSION_CONFLICT",
                conflicts=tuple((key, tuple(self.heads[key])) for key in refused),
            )
        assert unit.accepted is not None
        return unit.accepted

    def in_order(self, unit: Unit) -> list[Key]:
        return sorted(unit.staged, key=lambda key: (key == unit.closing_key, key))

    def try_publish(self, unit: Unit) -> list[Key]:
        """Publish `unit` and return nothing, or return the entities that are in the way."""
        drifted = [
            key
            for key in self.in_order(unit)
            if {*self.heads.get(key, [])} != {*unit.baseline.get(key, [])}
        ]
        become = {key: self.reconciled(unit, key) for key in drifted}
        refused = [key for key, found in become.items() if found is None]
        if refused:
            return refused
        if drifted and self.crashes_next:
            self.crashes_next = False
            raise CrashError
        for key in self.in_order(unit):
            heads, new = unit.staged[key].heads, {*unit.versions.get(key, set())}
            found = become.get(key)
            if found is not None:
                heads = [*dict.fromkeys(found.values())]
                new |= {*heads}
            if key == unit.closing_key and found is not None and unit.accepted in found:
                self.close_with(unit, found[unit.accepted])
            self.publish(key, heads, [*new], is_unit=True)
        for record in self.records.values():
            if record.unit is not None and self.units[record.unit] is unit:
                record.unit = None
        unit.state = "committed"
        return []

    def close_with(self, unit: Unit, final: Version) -> None:
        staged = unit.staged[unit.closing_key]
        if staged.name != unit.sealed_by:
            return  # another mutation replaced it; its answer stays what it was
        unit.accepted = final
        record = self.records.get(str(unit.sealed_by))
        if record is not None:
            record.answer = final

    def reconciled(self, unit: Unit, key: Key) -> dict[Version, Version] | None:
        """Return what each surviving head of a drifted entity becomes, None if that is refused."""
        staged, baseline = unit.staged[key], unit.baseline.get(key, [])
        current = self.heads[key]
        replaced_inside = ({*baseline} | unit.versions.get(key, set())) - {*staged.heads}
        replaced_outside = (self.known[key] - unit.known.get(key, set()) | {*baseline}) - {*current}
        superseded = replaced_inside | replaced_outside
        heads = [v for v in dict.fromkeys([*staged.heads, *current]) if v not in superseded]
        is_strict = key[0] in self.strict
        active = [head for head in heads if head.items is not None]
        if staged.strategy == "reject" or (is_strict and len(active) < len(heads)):
            return None
        become = {head: head for head in heads}
        if staged.strategy == "merge":
            become |= self.merged(active)
            if is_strict and len({*become.values()}) > 1:
                return None
        return become

    # Publication

    def publish(
        self, key: Key, heads: list[Version], new: list[Version], *, is_unit: bool = False
    ) -> None:
        previous = self.heads.get(key, [])
        self.heads[key] = heads
        self.known.setdefault(key, set()).update(new)
        is_deletion = len(heads) == 1 and heads[0].items is None
        if is_unit and not previous and is_deletion:
            return  # created and deleted where nobody saw it
        if not previous:
            kind = "created"
        elif len(heads) > 1:
            kind = "conflicted"
        elif len(previous) > 1:
            kind = "resolved"
        else:
            kind = "deleted" if is_deletion else "updated"
        self.log.append((key, kind, frozenset(heads)))

    def version(
        self, parents: tuple[Version, ...], items: frozenset[str] | None, mark: int
    ) -> Version:
        self.orders += 1
        return Version(self.orders, parents, items, mark)


def dominator(starts: list[Version]) -> Version | None:
    """Return the newest version through which every way back from `starts` leads."""
    ancestors: dict[Version, None] = {}
    rest = [*starts]
    while rest:
        version = rest.pop()
        if version not in ancestors:
            ancestors[version] = None
            rest += version.parents
    for candidate in sorted(ancestors, key=lambda version: -version.order):
        if not any(reaches_a_root(start, candidate) for start in starts):
            return candidate
    return None


def reaches_a_root(start: Version, without: Version) -> bool:
    seen: set[Version] = {without}
    rest = [start]
    while rest:
        version = rest.pop()
        if version in seen:
            continue
        seen.add(version)
        if not version.parents:
            return True
        rest += version.parents
    return False
