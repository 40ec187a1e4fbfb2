"""The rules of a policy that its JSON Schema cannot say, or that must hold without it.

P1 … P48 run in a fixed order, which decides what is reported of a policy with several defects:
metadata fields and entity types ascend by code point, rules stand in file order, and the rules of a
type come before its fallback. P49 and P50 are additions of this implementation and come last. The
schema refuses some of these defects earlier; the checks repeat them, because a policy may be built
in a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchouli.backend.config.dialect import SchemaError, compile_schema
from patchouli.backend.config.models import (
    BatchPublication,
    CausalAfter,
    KeyedIdempotency,
    Linearizable,
    Serialize,
    SharedSnapshot,
)
from patchouli.backend.config.places import Place, quoted
from patchouli.backend.errors import ConfigurationError
from patchouli.backend.pointers import compile_pointer, is_member_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from patchouli.backend.config.models import (
        Aliases,
        Behavior,
        Conflict,
        Consistency,
        JsonSchema,
        Policy,
    )

RESERVED_POINTER = "/deadline_unix_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule: where, which, what is wrong, and what to write instead."""

    place: Place
    rule: str
    problem: str
    remedy: str

    def error(self) -> ConfigurationError:
        """Return the finding as an error of kind `Invalid`."""
        return ConfigurationError(
            kind="Invalid",
            path=self.place.dotted,
            rule=self.rule,
            problem=self.problem,
            remedy=self.remedy,
        )


def check_policy(policy: Policy) -> list[ConfigurationError]:
    """Return every broken rule of `policy` in evaluation order; an empty list means none."""
    return [finding.error() for finding in findings(policy)]


def findings(policy: Policy) -> Iterator[Finding]:
    """Yield every broken rule of `policy` in evaluation order."""
    return _Checks(policy).all()


class _Checks:
    """The checks of one policy; each method yields what it finds, in order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.aliases = sorted(policy.meta_fields)
        self.scope_by = policy.entity_identity.scope_by

    def all(self) -> Iterator[Finding]:
        yield from self.root()
        for alias in self.aliases:
            yield from self.meta_field(alias)
        yield from self.scope()
        for name in sorted(self.policy.entity_types):
            yield from self.entity_type(name)
        yield from self.own_additions()

    def root(self) -> Iterator[Finding]:
        policy, root = self.policy, Place()
        if policy.version != 1:
            yield _finding(
                root / "version",
                1,
                f"the version is {policy.version}, which is unknown",
                "Write 1.",
            )
        if not policy.meta_fields:
            yield _finding(
                root / "meta_fields",
                2,
                "no metadata field is declared",
                'Declare one or more, for example {"workspace_id": {"pointer": "/workspace_id", '
                '"schema": {"type": "string"}}}.',
            )
        if not policy.entity_types:
            yield _finding(
                root / "entity_types",
                3,
                "no entity type is declared",
                "Declare one or more, each with value_schema, rules and fallback.",
            )
        retention = root / "retention"
        if policy.retention.idempotency_seconds <= 0:
            yield _finding(
                retention / "idempotency_seconds",
                4,
                "stored results must be kept for a time",
                "Write a number of seconds of 1 or more, for example 86400.",
            )
        if policy.retention.changes_seconds <= 0:
            yield _finding(
                retention / "changes_seconds",
                5,
                "change records must be kept for a time",
                "Write a number of seconds of 1 or more, for example 604800.",
            )

    def meta_field(self, alias: str) -> Iterator[Finding]:
        fields = Place() / "meta_fields"
        field = self.policy.meta_fields[alias]
        place = fields / alias / "pointer"
        if not alias:
            yield _finding(fields, 6, "a metadata field has no name", "Give the field a name.")
        if not is_member_pointer(field.pointer):
            yield _finding(place, 7, *_bad_pointer(field.pointer, "/workspace_id"))
        if field.pointer == RESERVED_POINTER:
            yield _finding(
                place,
                8,
                "the deadline of a request belongs to the protocol and cannot be a metadata field",
                f"Point to another member than {RESERVED_POINTER}.",
            )
        yield from self.schema(fields / alias / "schema", field.json_schema, meta=9, compiled=10)

    def schema(
        self, place: Place, schema: JsonSchema, *, meta: int, compiled: int
    ) -> Iterator[Finding]:
        try:
            compile_schema(schema)
        except SchemaError as error:
            where = f" (at {error.place.pointer} of the schema)" if error.place.tokens else ""
            yield _finding(
                place,
                meta if error.is_malformed else compiled,
                error.problem + where,
                error.remedy,
            )

    def scope(self) -> Iterator[Finding]:
        place = Place() / "entity_identity" / "scope_by"
        for alias in self.scope_by:
            if alias not in self.policy.meta_fields:
                yield self.unknown_alias(place, 11, alias)
                break
        duplicate = _first_duplicate(self.scope_by)
        if duplicate is not None:
            yield _finding(place, 12, f'"{duplicate}" is listed twice', "List each alias once.")

    def entity_type(self, name: str) -> Iterator[Finding]:
        types = Place() / "entity_types"
        place, entity_type = types / name, self.policy.entity_types[name]
        if not name:
            yield _finding(types, 13, "an entity type has no name", "Give the type a name.")
        yield from self.schema(
            place / "value_schema", entity_type.value_schema, meta=14, compiled=15
        )
        names: set[str] = set()
        for index, rule in enumerate(entity_type.rules):
            here = place / "rules" / index
            if rule.name in names:
                yield _finding(
                    here / "name",
                    16,
                    f'an earlier rule of the type is named "{rule.name}" too',
                    "Give each rule of a type a name of its own.",
                )
            names.add(rule.name)
            yield from self.condition(here / "when" / "all_present", rule.when.all_present)
            yield from self.behavior(here / "behavior", rule.behavior)
        yield from self.behavior(place / "fallback", entity_type.fallback)

    def condition(self, place: Place, aliases: Aliases) -> Iterator[Finding]:
        if not aliases:
            yield _finding(
                place,
                17,
                "the condition names no alias, so the rule would take every request",
                "Name one or more aliases, or put the behavior into the fallback.",
            )
        for alias in aliases:
            if alias not in self.policy.meta_fields:
                yield self.unknown_alias(place, 18, alias)
                return
        duplicate = _first_duplicate(aliases)
        if duplicate is not None:
            yield _finding(place, 18, f'"{duplicate}" is listed twice', "List each alias once.")

    def behavior(self, place: Place, behavior: Behavior) -> Iterator[Finding]:
        yield from self.publication_fits_snapshot(place / "consistency" / "snapshot", behavior)
        yield from self.consistency(place / "consistency", behavior.consistency)
        if isinstance(behavior.publication, BatchPublication) and (
            behavior.consistency.sessions
            or any(
                isinstance(found, CausalAfter)
                for found in behavior.consistency.acquire.requirements
            )
        ):
            yield _finding(
                place / "consistency",
                35,
                "sessions and causal tokens cannot be combined with batch publication, whose "
                "baseline is fixed",
                "Remove the sessions and causal_after requirements, or publish immediately.",
            )
        ordering = behavior.consistency.commit.ordering
        if isinstance(ordering, Serialize):
            yield from self.control_key(
                place / "consistency" / "commit" / "ordering" / "key_by", 36, ordering.key_by
            )
        if isinstance(behavior.idempotency, KeyedIdempotency):
            yield from self.required_key(
                place / "idempotency" / "key_by", 37, 38, behavior.idempotency.key_by
            )
        yield from self.conflict(place / "conflict", behavior.conflict)
        if isinstance(behavior.publication, BatchPublication):
            yield from self.batch(place / "publication", behavior.publication)

    def publication_fits_snapshot(self, place: Place, behavior: Behavior) -> Iterator[Finding]:
        snapshot, publication = behavior.consistency.snapshot, behavior.publication
        match snapshot, publication:
            case SharedSnapshot(), BatchPublication():
                yield from self.required_key(place / "key_by", 19, 20, snapshot.key_by)
                if set(snapshot.key_by) != set(publication.key_by):
                    yield _finding(
                        place / "key_by",
                        21,
                        f"the snapshot is keyed by [{quoted(snapshot.key_by)}], but publication by "
                        f"[{quoted(publication.key_by)}]",
                        "Use the same aliases for both.",
                    )
            case SharedSnapshot(), _:
                yield _finding(
                    place / "mode",
                    22,
                    "a shared snapshot cannot be combined with immediate publication",
                    'Write {"mode": "request"} here, or publish by batch with the same key_by.',
                )
            case _, BatchPublication():
                yield _finding(
                    place / "mode",
                    23,
                    "batch publication needs a shared snapshot",
                    'Write {"mode": "shared", "key_by": '
                    f"[{quoted(publication.key_by)}]}} here, or publish immediately.",
                )
            case _:
                pass

    def consistency(self, place: Place, consistency: Consistency) -> Iterator[Finding]:
        acquire, here = consistency.acquire, place / "acquire"
        if not acquire.allow_sources:
            yield _finding(
                here / "allow_sources", 24, "no source is allowed", 'Write ["authority"].'
            )
        duplicate = _first_duplicate(acquire.allow_sources)
        if duplicate is not None:
            yield _finding(
                here / "allow_sources",
                25,
                f'"{duplicate}" is listed twice',
                "List each source once.",
            )
        for index, requirement in enumerate(acquire.requirements):
            at = here / "requirements" / index
            if isinstance(requirement, Linearizable):
                yield from self.control_key(at / "key_by", 27, requirement.key_by)
            elif requirement.token not in self.policy.meta_fields:
                yield self.unknown_alias(at / "token", 26, requirement.token)
        linearizable = [r for r in acquire.requirements if isinstance(r, Linearizable)]
        if len(linearizable) > 1:
            yield _finding(
                here / "requirements",
                28,
                "there are two linearizable requirements, but a request belongs to one domain",
                "Keep one of them.",
            )
        if linearizable and "authority" not in acquire.allow_sources:
            yield _finding(
                here / "allow_sources",
                29,
                "a linearizable read needs the authority, which is not allowed here",
                'Add "authority", or remove the linearizable requirement.',
            )
        yield from self.sessions(place / "sessions", consistency)

    def sessions(self, place: Place, consistency: Consistency) -> Iterator[Finding]:
        earlier: set[frozenset[str]] = set()
        for index, session in enumerate(consistency.sessions):
            at = place / index
            yield from self.required_key(at / "key_by", 30, 31, session.key_by)
            if frozenset(session.key_by) in earlier:
                yield _finding(
                    at / "key_by",
                    32,
                    "an earlier session has the same aliases; their order makes no difference",
                    "Put all guarantees of one session into one entry.",
                )
            earlier.add(frozenset(session.key_by))
            if not session.guarantees:
                yield _finding(
                    at / "guarantees",
                    33,
                    "the session guarantees nothing",
                    'Write "monotonic_reads", "read_your_writes" or both, or remove the session.',
                )
            duplicate = _first_duplicate(session.guarantees)
            if duplicate is not None:
                yield _finding(
                    at / "guarantees",
                    34,
                    f'"{duplicate}" is listed twice',
                    "List each guarantee once.",
                )

    def conflict(self, place: Place, conflict: Conflict) -> Iterator[Finding]:
        if conflict.strategy_from not in self.policy.meta_fields:
            yield self.unknown_alias(place / "strategy_from", 39, conflict.strategy_from)
        if conflict.base_versions not in self.policy.meta_fields:
            yield self.unknown_alias(place / "base_versions", 40, conflict.base_versions)
        earlier: list[str] = []
        for index, rule in enumerate(conflict.merge):
            at = place / "merge" / index
            if not is_member_pointer(rule.path):
                yield _finding(at / "path", 41, *_bad_pointer(rule.path, "/content"))
            other = next((path for path in earlier if _overlap(path, rule.path)), None)
            if other is not None:
                yield _finding(
                    at / "path",
                    42,
                    f'"{rule.path}" overlaps with the path "{other}" of an earlier merge rule',
                    "Merge paths that do not contain each other.",
                )
            earlier.append(rule.path)
            bad = next((p for p in rule.group_by if not is_member_pointer(p)), None)
            if bad is not None:
                yield _finding(at / "group_by", 43, *_bad_pointer(bad, "/kind"))
            duplicate = _first_duplicate(rule.group_by)
            if duplicate is not None:
                yield _finding(
                    at / "group_by", 44, f'"{duplicate}" is listed twice', "List each pointer once."
                )

    def batch(self, place: Place, publication: BatchPublication) -> Iterator[Finding]:
        yield from self.required_key(place / "key_by", 45, 46, publication.key_by)
        if publication.staging_ttl_ms <= 0:
            yield _finding(
                place / "staging_ttl_ms",
                47,
                "an open batch needs time to live",
                "Write a number of milliseconds of 1 or more, for example 3600000.",
            )
        if publication.close_when.field not in self.policy.meta_fields:
            yield self.unknown_alias(
                place / "close_when" / "field", 48, publication.close_when.field
            )

    def own_additions(self) -> Iterator[Finding]:
        pointers = {
            alias: compile_pointer(self.policy.meta_fields[alias].pointer)
            for alias in self.aliases
            if is_member_pointer(self.policy.meta_fields[alias].pointer)
        }
        for alias, inner in pointers.items():
            for other, outer in pointers.items():
                if len(outer) < len(inner) and inner[: len(outer)] == outer:
                    yield _finding(
                        Place() / "meta_fields" / alias / "pointer",
                        49,
                        f'the pointer lies inside the one of "{other}", so that metadata of '
                        "results and events could not carry both",
                        "Point to different members.",
                    )
                    break
        history_seconds = self.policy.retention.history_seconds
        if history_seconds is not None and history_seconds < 0:
            yield _finding(
                Place() / "retention" / "history_seconds",
                50,
                "history cannot be kept for a negative time",
                "Write a number of seconds, or 0 to keep everything.",
            )

    def required_key(
        self, place: Place, empty: int, invalid: int, aliases: Aliases
    ) -> Iterator[Finding]:
        if not aliases:
            yield _finding(
                place, empty, "the key names no alias", "Name one or more metadata fields."
            )
        yield from self.control_key(place, invalid, aliases)

    def control_key(self, place: Place, number: int, aliases: Aliases) -> Iterator[Finding]:
        """Yield the first reason for which `aliases` make no control key."""
        seen: set[str] = set()
        for alias in aliases:
            if alias not in self.policy.meta_fields:
                yield self.unknown_alias(place, number, alias)
                return
            if alias in seen:
                yield _finding(place, number, f'"{alias}" is listed twice', "List each alias once.")
                return
            seen.add(alias)
        for alias in aliases:
            if alias in self.scope_by:
                yield _finding(
                    place,
                    number,
                    f'"{alias}" is part of the scope, which every key contains already',
                    "Leave it out; [] means the whole scope where an empty key is allowed.",
                )
                return

    def unknown_alias(self, place: Place, number: int, alias: str) -> Finding:
        return _finding(
            place,
            number,
            f'"{alias}" is not declared under "meta_fields"',
            f"Declare it, or use one of {quoted(self.aliases)}.",
        )


def _finding(place: Place, number: int, problem: str, remedy: str) -> Finding:
    return Finding(place=place, rule=f"P{number}", problem=problem, remedy=remedy)


def _bad_pointer(pointer: str, example: str) -> tuple[str, str]:
    return (
        f'"{pointer}" is no JSON Pointer to a member',
        f'Begin it with "/" and write "~0" for "~" and "~1" for "/" in names, as in "{example}".',
    )


def _first_duplicate(items: Sequence[Any]) -> Any | None:  # strings, whatever their literal type
    seen: set[Any] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _overlap(left: str, right: str) -> bool:
    return left == right or left.startswith(f"{right}/") or right.startswith(f"{left}/")
