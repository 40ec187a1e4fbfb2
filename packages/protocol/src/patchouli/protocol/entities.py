"""`patchouli.entity.*@1`: create, read, retrieve, update, delete."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from patchouli.protocol.constants import DEFAULT_RESULT_ITEMS, MAX_RESULT_ITEMS
from patchouli.protocol.shapes import (
    ActiveVersion,
    AnyJson,
    Array,
    Closed,
    DeletedVersion,
    NonEmpty,
    Params,
    Ref,
    Result,
    Version,
)
from pydantic import AfterValidator, Field

EntityState: TypeAlias = Literal["active", "conflicted", "deleted"]


def _merge_duplicates(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


Names: TypeAlias = Annotated[
    tuple[NonEmpty, ...],
    Array(),
    AfterValidator(_merge_duplicates),
    Field(min_length=1, description="Duplicates count once."),
]


class CreateData(Closed):
    """A new entity; without an `id` the server makes one."""

    type: NonEmpty
    id: NonEmpty | None = None
    value: AnyJson


class CreateParams(Params):
    """Creates an entity."""

    data: CreateData


class AcceptedData(Closed):
    """The version that the mutation brought about; its value may be a merge."""

    entity: ActiveVersion


class CreateResult(Result):
    """Answers `create`."""

    data: AcceptedData


class ReadData(Closed):
    """The entity to read."""

    ref: Ref


class ReadParams(Params):
    """Reads every head of an entity."""

    data: ReadData


class ReadResultData(Closed):
    """All heads of the entity, ascending by version."""

    state: EntityState
    variants: Annotated[tuple[Version, ...], Array(), Field(min_length=1)]


class ReadResult(Result):
    """Answers `read`."""

    data: ReadResultData


class RetrieveData(Closed):
    """A query: one JSON object as text, over some types or all."""

    query: NonEmpty
    types: Names | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_RESULT_ITEMS)] = DEFAULT_RESULT_ITEMS


class RetrieveParams(Params):
    """Searches and lists entities, page by page."""

    data: RetrieveData


class Hit(Closed):
    """One entity found, with all its heads."""

    score: Annotated[float, Field(allow_inf_nan=False)]
    variants: Annotated[tuple[Version, ...], Array(), Field(min_length=1)]


class RetrieveResultData(Closed):
    """One page."""

    hits: Annotated[tuple[Hit, ...], Array()]


class RetrieveResult(Result):
    """Answers `retrieve`; `meta.next_cursor` is there when a further page is."""

    data: RetrieveResultData


class UpdateData(Closed):
    """A complete new value for the entity."""

    ref: Ref
    value: AnyJson


class UpdateParams(Params):
    """Replaces an entity's value; the versions it starts from stand in `meta`."""

    data: UpdateData


class UpdateResult(Result):
    """Answers `update`."""

    data: AcceptedData


class DeleteData(Closed):
    """The entity to delete."""

    ref: Ref


class DeleteParams(Params):
    """Deletes an entity; the versions it starts from stand in `meta`."""

    data: DeleteData


class DeletedData(Closed):
    """The tombstone."""

    entity: DeletedVersion


class DeleteResult(Result):
    """Answers `delete`."""

    data: DeletedData
