"""The fact vocabulary: values that programs of different makers understand (SPEC `facts`).

These models are for authors of clients. The store itself checks values by the JSON Schemas of
`data/schemas`, which say the same; the two are held equal by a differential test. Every
member is required, a nullable one may be None but not left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, TypeAlias

from patchouli.protocol.shapes import AnyJson, Array, Closed, NonEmpty, OpenObject, Unique
from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from patchouli.protocol.jsonvalue import JsonObject, JsonValue

# RFC 3339 date-time: days per month, leap years, hours to 23, a leap second; t and z in either
# case. Written without look-around and without \d, so that every engine reads the same. The end
# anchor of some engines also matches before a last line feed: the JSON Schemas refuse it apart.
TIMESTAMP_PATTERN: Final = (
    r"^(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    r"[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$"
)
EXTENSION_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9][A-Za-z0-9_-]*)+$"
MEDIA_TYPE_PATTERN: Final = "^[^/]+/[^/]+$"
MAX_EXTENSIONS: Final = 32


class Fact(Closed):
    """An object of the vocabulary; members whose JSON name is no Python name carry a ``_``."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    @classmethod
    def from_value(cls, value: JsonValue) -> Self:
        """Return the fact that a JSON value is.

        Raises:
            pydantic.ValidationError: It is none.
        """
        return cls.model_validate(value, by_alias=True, by_name=False)

    def to_value(self) -> JsonObject:
        """Return the fact as the JSON value to store."""
        return self.model_dump(mode="json")


def _whole_number(value: object) -> object:
    # For JSON Schema 14.0 is an integer, so it is a valid length that may come out of a store.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _require_few(extensions: JsonValue) -> JsonValue:
    # Asked before the members are looked at, because each bad one would be reported.
    if type(extensions) is dict and len(extensions) > MAX_EXTENSIONS:
        raise PydanticCustomError("too_long", "too many extensions")
    return extensions


Timestamp: TypeAlias = Annotated[str, Field(pattern=TIMESTAMP_PATTERN)]
MediaType: TypeAlias = Annotated[str, Field(pattern=MEDIA_TYPE_PATTERN)]
ExtensionName: TypeAlias = Annotated[str, Field(pattern=EXTENSION_NAME_PATTERN)]
Extensions: TypeAlias = Annotated[
    dict[ExtensionName, OpenObject], Field(max_length=MAX_EXTENSIONS), BeforeValidator(_require_few)
]


class KnowledgeRef(Fact):
    """Points to a knowledge entity of the same scope; it need not exist."""

    type: Literal["knowledge"]
    id: NonEmpty


class ArtifactRef(Fact):
    """Points to an artifact entity of the same scope, and says what it is to the knowledge."""

    type: Literal["artifact"]
    id: NonEmpty
    role: Literal["source", "attachment", "embedding"]


class FactScope(Fact):
    """To whom the fact belongs, as its maker saw it; unrelated to the scope of the policy."""

    tenant: NonEmpty | None
    workspace: NonEmpty | None
    user: NonEmpty | None
    session: NonEmpty | None


class Origin(Fact):
    """From where the fact was taken."""

    provider: NonEmpty | None
    binding: NonEmpty | None
    native_type: NonEmpty | None
    native_id: NonEmpty | None
    native_revision: NonEmpty | None


class FactTime(Fact):
    """When it happened, was written down, and came here."""

    event_at: Timestamp | None
    source_created_at: Timestamp | None
    source_updated_at: Timestamp | None
    observed_at: Timestamp
    ingested_at: Timestamp


class Lifecycle(Fact):
    """Whether the fact is still held to be true."""

    status: Literal["active", "superseded", "retracted"]
    expires_at: Timestamp | None


class Provenance(Fact):
    """One step of the way that led to the fact."""

    kind: Literal["observed", "asserted", "derived", "imported"]
    actor: NonEmpty
    source: NonEmpty | None
    recorded_at: Timestamp


class MetadataCore(Fact):
    """What every fact says about itself; identity and version belong to the entity."""

    scope: FactScope
    origin: Origin
    time: FactTime
    lifecycle: Lifecycle
    provenance: Annotated[tuple[Provenance, ...], Array(), Field(max_length=64)]


class ArtifactCore(MetadataCore):
    """The core of an artifact's metadata."""

    schema_: Literal["patchouli.artifact@1"] = Field(alias="schema")


class KnowledgeCore(MetadataCore):
    """The core of a knowledge's metadata."""

    schema_: Literal["patchouli.knowledge@1"] = Field(alias="schema")


class KnowledgeRelationCore(MetadataCore):
    """The core of a relation's metadata."""

    schema_: Literal["patchouli.knowledge-relation@1"] = Field(alias="schema")


class ArtifactMetadata(Fact):
    """Metadata of an artifact."""

    core: ArtifactCore
    extensions: Extensions


class KnowledgeMetadata(Fact):
    """Metadata of a knowledge."""

    core: KnowledgeCore
    extensions: Extensions


class KnowledgeRelationMetadata(Fact):
    """Metadata of a relation."""

    core: KnowledgeRelationCore
    extensions: Extensions


class ManagedPlacement(Fact):
    """The bytes are in the store of the named node."""

    kind: Literal["managed"]
    provider: NonEmpty
    key: NonEmpty


class IndexedPlacement(Fact):
    """The bytes are elsewhere; the locator says where."""

    kind: Literal["indexed"]
    provider: NonEmpty
    locator: NonEmpty
    revision: NonEmpty | None


Placement: TypeAlias = Annotated[ManagedPlacement | IndexedPlacement, Field(discriminator="kind")]


class ArtifactValue(Fact):
    """The value of an `artifact` entity."""

    media_type: MediaType
    name: NonEmpty | None
    byte_length: Annotated[int, BeforeValidator(_whole_number), Field(ge=0)] | None
    digest: NonEmpty | None
    placement: Placement
    metadata: ArtifactMetadata

    @model_validator(mode="after")
    def _managed_bytes_are_described(self) -> Self:
        if self.placement.kind == "managed" and (self.byte_length is None or self.digest is None):
            raise PydanticCustomError(
                "managed_undescribed", "a managed artifact has a byte_length and a digest"
            )
        return self


class TextContent(Fact):
    """Knowledge in words."""

    kind: Literal["text"]
    text: NonEmpty


class StructuredContent(Fact):
    """Knowledge in a form of its own."""

    kind: Literal["structured"]
    value: AnyJson


Content: TypeAlias = Annotated[TextContent | StructuredContent, Field(discriminator="kind")]


class TemporalUnknown(Fact):
    """Nobody knows when it holds."""

    kind: Literal["unknown"]


class TemporalTimeless(Fact):
    """It holds always."""

    kind: Literal["timeless"]


class TemporalInstant(Fact):
    """It holds at one moment."""

    kind: Literal["instant"]
    at: Timestamp


class TemporalInterval(Fact):
    """It holds from one moment to another; which comes first is not checked."""

    kind: Literal["interval"]
    start: Timestamp
    end: Timestamp


class TemporalSequence(Fact):
    """It is the course of other knowledge; an item may come again."""

    kind: Literal["sequence"]
    items: Annotated[tuple[KnowledgeRef, ...], Array(), Field(min_length=1, max_length=256)]


Temporal: TypeAlias = Annotated[
    TemporalUnknown | TemporalTimeless | TemporalInstant | TemporalInterval | TemporalSequence,
    Field(discriminator="kind"),
]
Retrieval: TypeAlias = Literal[
    "unknown", "exact", "associative", "contextual", "causal", "procedural"
]


class Profile(Fact):
    """What kind of knowledge it is, in seven respects."""

    epistemic: Literal["unknown", "observation", "hypothesis", "belief", "knowledge", "derived"]
    temporal: Temporal
    ownership: Literal["unknown", "world", "agent", "user", "shared"]
    abstraction: Literal["unknown", "instance", "pattern", "concept", "rule"]
    persistence: Literal["unknown", "working", "short_term", "long_term", "permanent"]
    retrieval: Annotated[tuple[Retrieval, ...], Array(), Field(min_length=1), Unique()]
    actionability: Literal["unknown", "informational", "directive", "constraint"]


class KnowledgeValue(Fact):
    """The value of a `knowledge` entity."""

    content: Content
    metadata: KnowledgeMetadata
    artifact: Annotated[tuple[ArtifactRef, ...], Array(), Field(max_length=32), Unique()]
    profile: Profile


KnowledgeRefs: TypeAlias = Annotated[
    tuple[KnowledgeRef, ...], Array(), Field(min_length=1), Unique()
]


class KnowledgeRelationValue(Fact):
    """The value of a `knowledge_relation` entity."""

    type: Literal[
        "supports", "contradicts", "derived_from", "generalized_from", "causes", "supersedes"
    ]
    from_: KnowledgeRefs = Field(alias="from")
    to: KnowledgeRefs
    metadata: KnowledgeRelationMetadata
