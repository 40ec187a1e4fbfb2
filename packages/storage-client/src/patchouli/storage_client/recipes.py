"""What helpers decide between their requests; no I/O, so that client and façade share it."""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from patchouli.protocol import ErrorCode
from patchouli.storage_client.answers import member
from patchouli.storage_client.errors import PatchouliRpcError
from patchouli.storage_client.wire import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from patchouli.protocol import JsonObject
    from patchouli.storage_client.shapes import Page, Params, ReadResult

MAX_MUTATIONS: Final = 5  # that name their bases, of one upsert or removal; then the race is lost


def require_object(what: str, value: object, *members: str) -> None:
    """Return if `value` is an object that has all `members`.

    Raises:
        TypeError: It is not.
    """
    if not (isinstance(value, Mapping) and all(name in value for name in members)):
        shape = ", ".join(f"{name!r}: …" for name in members) or "…"
        raise TypeError(f"{what} must be {{{shape}}}, not {reprlib.repr(cast('object', value))}")


def names(what: str, given: Sequence[str]) -> list[str]:
    """Return several names as a list.

    Raises:
        TypeError: `given` is one text, whose letters would be taken for names.
    """
    if isinstance(given, str):
        raise TypeError(f"{what} must be a list of names, not {reprlib.repr(given)}")
    return list(given)


def query_params(
    meta: Mapping[str, object],
    instruction: Mapping[str, object],
    *,
    types: Sequence[str] | None,
    limit: int | None,
) -> Params:
    """Return the parameters of a retrieve; what is None is not sent.

    Raises:
        TypeError: The instruction is no object, or the types are one text.
    """
    require_object("an instruction", instruction)
    data: dict[str, object] = {"query": json_text(instruction, "/data/query")}
    if types is not None:
        data["types"] = names("types", types)
    if limit is not None:
        data["limit"] = limit
    return {"meta": meta, "data": data}


def next_instruction(instruction: Mapping[str, object], page: Page) -> dict[str, object] | None:
    """Return the instruction of the next page, or None after the last one.

    Raises:
        MalformedAnswerError: The page has no metadata, or a `next_cursor` that is no string.
    """
    if "next_cursor" not in member(page, "/meta", dict):
        return None
    return {**instruction, "cursor": member(page, "/meta/next_cursor", str)}


def work_unit_metas(
    meta: Mapping[str, object], close_meta: Mapping[str, object], *, count: int
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
    meta: Mapping[str, object], close_meta: Mapping[str, object], count: int
) -> Iterator[JsonObject]:
    for number in range(1, count + 1):
        fresh = cast("JsonObject", copy.deepcopy(dict(meta)))
        if number == count:
            fresh.update(cast("JsonObject", copy.deepcopy(dict(close_meta))))
        yield fresh


class Bases:
    """How the policy is told which versions a mutation starts from, and to refuse others.

    Under the shipped policy a stale base would be accepted beside the head that it missed, and a
    lost race would leave the entity conflicted; so every mutation asks for `reject`.
    """

    def __init__(
        self, meta: Mapping[str, object], *, base_versions_key: str, conflict_strategy_key: str
    ) -> None:
        self._meta: Final = {**meta, conflict_strategy_key: "reject"}
        self._key: Final = base_versions_key
        self._mutations = 0

    def creation(self, ref: Mapping[str, object], value: object) -> Params:
        """Return the parameters of the create."""
        require_object("a ref", ref, "type", "id")
        data = {"type": ref["type"], "id": ref["id"], "value": value}
        return {"meta": self._meta, "data": data}

    def mutation(self, versions: Sequence[str], data: Mapping[str, object]) -> Params:
        """Return the parameters of an update or delete that starts from all of `versions`."""
        self._mutations += 1
        return {"meta": {**self._meta, self._key: list(versions)}, "data": data}

    def after(self, error: PatchouliRpcError) -> tuple[str, ...]:
        """Return the versions to start from after a refusal.

        Raises:
            PatchouliRpcError: `error` itself; it is no conflict about the one entity, or there
                were too many of them.
        """
        versions = error.current_versions
        if (
            error.code != ErrorCode.VERSION_CONFLICT
            or not versions
            or self._mutations == MAX_MUTATIONS
        ):
            raise error
        return versions


def identity(ref: Mapping[str, object]) -> dict[str, object]:
    """Return the data that name an entity.

    Raises:
        TypeError: `ref` names none.
    """
    require_object("a ref", ref, "type", "id")
    return {"ref": {"type": ref["type"], "id": ref["id"]}}


def heads_to_delete(read: ReadResult) -> tuple[str, ...]:
    """Return all heads of what was read, none if the entity is deleted already.

    Raises:
        MalformedAnswerError: The answer does not say.
    """
    if member(read, "/data/state", str) == "deleted":
        return ()
    variants = cast("list[object]", member(read, "/data/variants", list))
    return tuple(member(one, "/version", str) for one in variants)


def is_not_found(error: PatchouliRpcError) -> bool:
    """Say whether the identity never was."""
    return error.code == ErrorCode.NOT_FOUND
