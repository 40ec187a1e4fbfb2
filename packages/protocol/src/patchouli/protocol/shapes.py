"""Shapes that the messages of several methods share (SPEC `shapes`), and how models treat them.

Models are frozen and strict: an integer is a JSON integer, a string a string, nothing is converted.
`params` and `data` are closed. `meta` and every "any JSON" stay the very objects that were parsed:
they are not walked, not copied and, coming from `parse_json`, need no further check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

from patchouli.protocol.jsonvalue import MAX_INTEGER
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from patchouli.protocol.jsonvalue import JsonObject, JsonValue
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue


class AsParsed:
    """Marks a field whose value is kept as the object it is; at most its kind is looked at."""

    __slots__ = ("_is_object",)

    def __init__(self, *, is_object: bool = False) -> None:
        self._is_object = is_object

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        if self._is_object:
            return core_schema.is_instance_schema(dict)
        return core_schema.any_schema()

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "object"} if self._is_object else {}


if TYPE_CHECKING:
    AnyJson: TypeAlias = JsonValue
    OpenObject: TypeAlias = JsonObject
else:  # a model would try to resolve the recursive alias, which it has no use for
    AnyJson = Annotated[object, AsParsed()]
    OpenObject = Annotated[dict, AsParsed(is_object=True)]
NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]
Token: TypeAlias = Annotated[
    str, Field(min_length=1, description="Opaque; compared for equality and nothing else.")
]
Unsigned: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INTEGER)]


def _require_unique(items: tuple[object, ...]) -> tuple[object, ...]:
    if len(set(items)) < len(items):
        raise PydanticCustomError("duplicate_item", "an item stands there twice")
    return items


class Array:
    """Marks a tuple that stands in JSON as an array.

    The first bad item ends the reading: a long array of bad items would cost seconds otherwise.
    """

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = cast("core_schema.TupleSchema", handler(source))
        return {**schema, "strict": False, "fail_fast": True}


class Unique:
    """Marks an array that holds no item twice."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(_require_unique, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "uniqueItems": True}


class Closed(BaseModel):
    """An object that has its own members and no others."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True, serialize_by_alias=True
    )


class EmptyData(Closed):
    """The `data` of a request that has nothing to say."""


class Ref(Closed):
    """Names one entity of a scope."""

    type: NonEmpty
    id: NonEmpty


class ActiveVersion(Closed):
    """A version that holds a value."""

    state: Literal["active"]
    ref: Ref
    version: Token
    value: AnyJson


class DeletedVersion(Closed):
    """A tombstone."""

    state: Literal["deleted"]
    ref: Ref
    version: Token


Version: TypeAlias = Annotated[ActiveVersion | DeletedVersion, Field(discriminator="state")]


class Params(Closed):
    """The `params` of every request but the handshake: open `meta`, and `data` of the method."""

    meta: Annotated[
        OpenObject,
        Field(
            json_schema_extra={
                "properties": {
                    "deadline_unix_ms": {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}
                }
            }
        ),
    ]


class NotificationParams(Closed):
    """The `params` of every notification: `meta`, and `data` of the method."""

    meta: OpenObject


class Result(Closed):
    """The `result` of every request but the handshake: open `meta`, and `data` of the method."""

    meta: OpenObject
