"""The policy document as frozen models: its shape and its types, none of its rules.

A model accepts whatever has the right types, so that a policy can be built in a program and then be
checked by `check_policy` exactly as one that was read from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

VERSION_MAX = 2**16 - 1
SECONDS_MAX = 2**64 - 1  # every other integer of the document
HISTORY_SECONDS_DEFAULT = 30 * 24 * 60 * 60

Alias = str
Aliases = tuple[Alias, ...]
Strategy = Literal["merge", "mvcc", "reject"]
Otherwise = Literal["mvcc", "reject"]
SourceName = Literal["authority", "replica"]
Guarantee = Literal["monotonic_reads", "read_your_writes"]

# A JSON Schema is a document of its own; its content is checked where it is compiled.
JsonSchema = dict[str, Any] | bool

Count = Annotated[StrictInt, Field(le=SECONDS_MAX)]


class Model(BaseModel):
    """A closed object: an unknown member is an error, and nothing can be reassigned."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Retention(Model):
    """How long stored results, changes and history stay."""

    idempotency_seconds: Count
    changes_seconds: Count
    history_seconds: Count | None = None


class MetaField(Model):
    """Where a request carries one alias, and which values it may have."""

    pointer: str
    json_schema: JsonSchema = Field(alias="schema")


class EntityIdentity(Model):
    """The aliases whose values isolate entities from each other."""

    scope_by: Aliases


class RequestSnapshot(Model):
    """Each request reads its own current snapshot."""

    mode: Literal["request"] = "request"


class SharedSnapshot(Model):
    """Requests with the same key read one fixed baseline."""

    mode: Literal["shared"] = "shared"
    key_by: Aliases


class CausalAfter(Model):
    """A read observes at least the state of the token bound to `token`."""

    kind: Literal["causal_after"] = "causal_after"
    token: Alias
    optional: StrictBool = False


class Linearizable(Model):
    """Requests of one domain have one total order."""

    kind: Literal["linearizable"] = "linearizable"
    key_by: Aliases


class Acquire(Model):
    """Where a read may be served from, and what must hold for it."""

    allow_sources: tuple[SourceName, ...]
    requirements: tuple[Annotated[CausalAfter | Linearizable, Field(discriminator="kind")], ...]


class Session(Model):
    """Guarantees for the requests with one session key."""

    key_by: Aliases
    guarantees: tuple[Guarantee, ...]


class NoOrdering(Model):
    """Mutations are accepted in any order."""

    kind: Literal["none"] = "none"


class Serialize(Model):
    """Mutations of one domain are accepted one at a time."""

    kind: Literal["serialize"] = "serialize"
    key_by: Aliases


class CommitOrdering(Model):
    """The ordering of mutations."""

    ordering: Annotated[NoOrdering | Serialize, Field(discriminator="kind")]


class Consistency(Model):
    """What a request observes and how mutations are ordered."""

    snapshot: Annotated[RequestSnapshot | SharedSnapshot, Field(discriminator="mode")]
    acquire: Acquire
    sessions: tuple[Session, ...]
    commit: CommitOrdering


class NoIdempotency(Model):
    """A repeated mutation is executed again."""

    mode: Literal["disabled"] = "disabled"


class KeyedIdempotency(Model):
    """A repeated mutation is answered with the stored result of the first."""

    mode: Literal["keyed"] = "keyed"
    key_by: Aliases


class MergeRule(Model):
    """One path whose concurrent values are merged, and what must agree for that."""

    path: str
    strategy: Literal["automerge"] = "automerge"
    group_by: tuple[str, ...]


class Conflict(Model):
    """What happens to a mutation that was based on other versions than the current ones."""

    default_strategy: Strategy
    strategy_from: Alias
    base_versions: Alias
    merge: tuple[MergeRule, ...]
    otherwise: Otherwise


class ImmediatePublication(Model):
    """An accepted mutation is visible at once."""

    mode: Literal["immediate"] = "immediate"


class CloseMarker(Model):
    """A mutation whose `field` equals `equals` closes its group."""

    kind: Literal["marker"] = "marker"
    field: Alias
    equals: Any  # any JSON value; null is one, so the member is required


class BatchPublication(Model):
    """Accepted mutations stay staged until their group is closed."""

    mode: Literal["batch"] = "batch"
    key_by: Aliases
    close_when: CloseMarker
    staging_ttl_ms: Count
    on_expire: Literal["discard"] = "discard"


class Behavior(Model):
    """Everything that is promised to a request once it was selected."""

    consistency: Consistency
    idempotency: Annotated[NoIdempotency | KeyedIdempotency, Field(discriminator="mode")]
    conflict: Conflict
    publication: Annotated[ImmediatePublication | BatchPublication, Field(discriminator="mode")]


class When(Model):
    """The condition of a rule: all of these aliases are present."""

    all_present: Aliases


class Rule(Model):
    """A behavior for the requests that carry certain metadata."""

    name: str
    when: When
    behavior: Behavior


class EntityTypePolicy(Model):
    """The values of one entity type, and how requests for it behave."""

    value_schema: JsonSchema
    rules: tuple[Rule, ...]
    fallback: Behavior


class Policy(Model):
    """The policy of one deployment."""

    schema_uri: str = Field(alias="$schema", default="./patchouli.schema.json")
    version: Annotated[StrictInt, Field(le=VERSION_MAX)]
    retention: Retention
    meta_fields: Mapping[Alias, MetaField]
    entity_identity: EntityIdentity
    entity_types: Mapping[str, EntityTypePolicy]

    def behaviors(self) -> list[tuple[str, str | None, int | None, Behavior]]:
        """Return every behavior as (type, rule name, rule index, behavior), in checking order.

        Types ascend by code point, rules stand in file order, the fallback (no name, no index)
        comes after them.
        """
        found: list[tuple[str, str | None, int | None, Behavior]] = []
        for name in sorted(self.entity_types):
            entity_type = self.entity_types[name]
            found += [
                (name, rule.name, index, rule.behavior)
                for index, rule in enumerate(entity_type.rules)
            ]
            found.append((name, None, None, entity_type.fallback))
        return found

    @property
    def history_seconds(self) -> int:
        """Seconds that superseded versions are kept; 0 keeps them for ever.

        Never below the retention of changes and of idempotency, nor below the longest staging time,
        because those still refer to history.
        """
        configured = self.retention.history_seconds
        if configured == 0:
            return 0
        staging_ms = [
            behavior.publication.staging_ttl_ms
            for _, _, _, behavior in self.behaviors()
            if isinstance(behavior.publication, BatchPublication)
        ]
        return max(
            HISTORY_SECONDS_DEFAULT if configured is None else configured,
            self.retention.changes_seconds,
            self.retention.idempotency_seconds,
            -(-max(staging_ms, default=0) // 1000),
        )
