"""From the metadata of a request to its bound aliases, and from aliases back to metadata.

An alias whose pointer does not resolve is absent. One that resolves, to whatever value, null
included, is present and must satisfy its schema; if it does not, the whole request fails, so that a
wrong value can never select a weaker rule. Every alias is evaluated for every request, in ascending
code-point order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from patchouli.backend.errors import InvalidRequestError
from patchouli.backend.pointers import UNBOUND, compile_pointer, resolve
from patchouli.backend.validation import SchemaValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from patchouli.backend.config.models import Policy
    from patchouli.backend.pointers import Tokens, Unbound
    from patchouli.provider import Json


class AliasBinder:
    """The metadata fields of one policy, compiled."""

    __slots__ = ("_aliases", "_members", "_pointers", "_tokens", "_validators")

    def __init__(self, policy: Policy) -> None:
        fields = sorted(policy.meta_fields.items())
        self._pointers = {alias: field.pointer for alias, field in fields}
        self._tokens = {alias: compile_pointer(field.pointer) for alias, field in fields}
        self._validators = {alias: SchemaValidator(field.json_schema) for alias, field in fields}
        # One member of the top level is the usual pointer; it is looked up without a walk.
        self._aliases: list[tuple[str, str | None, Tokens, Callable[[Json], bool]]] = [
            (
                alias,
                tokens[0] if len(tokens) == 1 else None,
                tokens,
                self._validators[alias].is_valid,
            )
            for alias, tokens in self._tokens.items()
        ]
        names = [name for _, name, _, _ in self._aliases if name is not None]
        self._members = names if len(names) == len(self._aliases) else None

    def values(self, meta: Mapping[str, Json]) -> tuple[Json | Unbound, ...]:
        """Return what stands at each pointer, valid or not; all that `bind` looks at."""
        if self._members is None:
            return tuple([resolve(meta, tokens) for tokens in self._tokens.values()])
        return tuple([meta.get(name, UNBOUND) for name in self._members])

    def bind(self, meta: Mapping[str, Json]) -> dict[str, Json]:
        """Return the value of every present alias.

        Raises:
            InvalidRequestError: A present value violates the schema of its alias; the first one in
                code-point order is named.
        """
        bound: dict[str, Json] = {}
        for alias, name, tokens, is_valid in self._aliases:
            value = resolve(meta, tokens) if name is None else meta.get(name, UNBOUND)
            if value is UNBOUND:
                continue
            if not is_valid(value):
                raise self._refusal(alias, value)
            bound[alias] = value
        return bound

    def is_valid(self, alias: str, value: Json) -> bool:
        """Return whether `value` satisfies the schema of `alias`, an alias of the policy."""
        return self._validators[alias].is_valid(value)

    def pointer(self, alias: str) -> str:
        """Return where a request carries `alias`, an alias of the policy."""
        return self._pointers[alias]

    def write(self, values: Mapping[str, Json]) -> dict[str, Json]:
        """Return a metadata object that carries `values` where a request would carry them.

        Missing levels are made as objects, also where a request may have arrays. Two aliases with
        one pointer are written in the order of `values`, so the later one stays.
        """
        written: dict[str, Json] = {}
        for alias, value in values.items():
            *levels, last = self._tokens[alias]
            node = written
            for level in levels:
                # No pointer lies inside another one (P49): what is found here was made here.
                node = cast("dict[str, Json]", node.setdefault(level, {}))
            node[last] = value
        return written

    def missing(self, alias: str, purpose: str) -> InvalidRequestError:
        """Return the refusal of a request that does not carry `alias`."""
        pointer = f"meta{self._pointers[alias]}"
        return InvalidRequestError(f"{pointer} is missing: {purpose}", pointer=pointer)

    def _refusal(self, alias: str, value: Json) -> InvalidRequestError:
        root = f"meta{self._pointers[alias]}"
        violation = self._validators[alias].first_violation(value)
        if violation is None:
            return InvalidRequestError(f"{root} is not valid", pointer=root)
        pointer = root + violation.pointer
        return InvalidRequestError(f"{pointer} {violation.problem}", pointer=pointer)
