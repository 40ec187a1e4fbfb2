"""What helpers decide between their requests; no I/O, so that client and façade share it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from patchouli.protocol import ErrorCode
from patchouli.storage_client.errors import MalformedAnswerError, PatchouliRpcError
from patchouli.storage_client.wire import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from patchouli.protocol import JsonObject, JsonValue
    from patchouli.storage_client.shapes import Page, Params, ReadResult, Ref

MAX_UPDATES: Final = 5  # of one upsert or removal; every further one has lost a race


def query_params(
    meta: JsonObject,
    instruction: Mapping[str, JsonValue],
    types: Sequence[str] | None,
    limit: int | None,
) -> Params:
    """Return the parameters of a retrieve; what is None is not sent."""
    data: JsonObject = {"query": json_text(instruction, "/data/query")}
    if types is not None:
        data["types"] = list(types)
    if limit is not None:
        data["limit"] = limit
    return {"meta": meta, "data": data}


def next_instruction(
    instruction: Mapping[str, JsonValue], page: Page
) -> dict[str, JsonValue] | None:
    """Return the instruction of the next page, or None after the last one.

    Raises:
        MalformedAnswerError: The page has a `next_cursor` that is no string.
    """
    meta: dict[str, Any] = dict(page["meta"])
    if "next_cursor" not in meta:
        return None
    cursor = meta["next_cursor"]
    if type(cursor) is not str:
        raise MalformedAnswerError("the next_cursor of a page is no string")
    return {**instruction, "cursor": cursor}


def work_unit_metas(
    meta: Mapping[str, JsonValue], close_meta: Mapping[str, JsonValue], count: int
) -> Iterator[JsonObject]:
    """Return the metadata of each mutation of a work unit, a copy each; the last one closes it.

    Raises:
        ValueError: There is no mutation, nothing to close the unit with, or a member of
            `close_meta` in `meta`, so that the first mutation would close it.
    """
    if count == 0:
        raise ValueError("a work unit needs a mutation")
    if not close_meta:
        raise ValueError("close_meta is empty: nothing would close the work unit")
    both = sorted(close_meta.keys() & meta.keys())
    if both:
        raise ValueError(f"meta has a member of close_meta already: {both[0]!r}")
    return _metas(meta, close_meta, count)


def _metas(
    meta: Mapping[str, JsonValue], close_meta: Mapping[str, JsonValue], count: int
) -> Iterator[JsonObject]:
    for number in range(1, count + 1):
        fresh = copy.deepcopy(dict(meta))
        if number == count:
            fresh.update(copy.deepcopy(dict(close_meta)))
        yield fresh


class Bases:
    """How the policy is told which versions a mutation starts from, and to refuse others.

    Under the shipped policy a stale base would be accepted beside the head that it missed, and a
    lost race would leave the entity conflicted; so every mutation asks for `reject`.
    """

    def __init__(
        self, meta: Mapping[str, JsonValue], *, base_versions_key: str, conflict_strategy_key: str
    ) -> None:
        self._meta: Final[JsonObject] = {**meta, conflict_strategy_key: "reject"}
        self._key: Final = base_versions_key
        self._updates = 0

    def creation(self, ref: Ref, value: JsonValue) -> Params:
        """Return the parameters of the create."""
        return {
            "meta": self._meta,
            "data": {"type": ref["type"], "id": ref["id"], "value": value},
        }

    def mutation(self, versions: Sequence[str], data: JsonObject) -> Params:
        """Return the parameters of an update or delete that starts from all of `versions`."""
        return {"meta": {**self._meta, self._key: list(versions)}, "data": data}

    def after(self, error: PatchouliRpcError) -> tuple[str, ...]:
        """Return the versions to start from after a refusal.

        Raises:
            PatchouliRpcError: `error` itself; it is no conflict about the one entity, or there
                were too many of them.
        """
        versions = error.current_versions
        if error.code != ErrorCode.VERSION_CONFLICT or not versions or self._updates == MAX_UPDATES:
            raise error
        self._updates += 1
        return versions


def identity(ref: Ref) -> JsonObject:
    """Return the data that name an entity."""
    return {"ref": {"type": ref["type"], "id": ref["id"]}}


def heads_to_delete(read: ReadResult) -> tuple[str, ...]:
    """Return all heads of what was read, none if the entity is deleted already."""
    if read["data"]["state"] == "deleted":
        return ()
    return tuple(version["version"] for version in read["data"]["variants"])


def is_not_found(error: PatchouliRpcError) -> bool:
    """Say whether the identity never was."""
    return error.code == ErrorCode.NOT_FOUND
