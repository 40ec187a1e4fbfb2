"""Compiled validators of metadata fields and entity values.

Everything is compiled once, when a policy is loaded. A valid value costs one call of the compiled
validator; where and why a value is invalid is looked for only after that call said so. The objects
are immutable and may be used from any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jsonschema_rs
from patchouli.backend.config.dialect import compile_schema
from patchouli.backend.config.places import Place
from patchouli.backend.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.backend.config.models import JsonSchema, Policy
    from patchouli.provider import Json


_SHOWN_VALUES = 10  # of a list in a message
_SHOWN_CHARACTERS = 80  # of a value in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The first thing that is wrong with a value, in words of our own.

    `pointer` is the JSON Pointer of the offending part; where one of several alternatives had to
    hold, it is the part that has to match one of them.
    """

    pointer: str
    keyword: str
    problem: str


class SchemaValidator:
    """One compiled schema.

    `is_valid(value)` is the fast answer. A value whose check meets the bound on regular-expression
    backtracking is not valid.
    """

    __slots__ = ("_validator", "is_valid")

    def __init__(self, schema: JsonSchema) -> None:
        self._validator = compile_schema(schema)
        self.is_valid: Callable[[Json], bool] = self._validator.is_valid

    def first_violation(self, value: Json) -> Violation | None:
        """Return what is wrong with `value`, or None if it is valid."""
        for error in self._validator.iter_errors(value):
            return Violation(
                pointer=Place(tuple(error.instance_path)).pointer,
                keyword=error.kind.name,
                problem=_worded(error.kind, keyword=error.schema_path[-1:]),
            )
        return None


class ValueValidators:
    """The value schemas of a policy, by entity type."""

    __slots__ = ("_by_type",)

    def __init__(self, policy: Policy) -> None:
        self._by_type = {
            name: SchemaValidator(entity_type.value_schema)
            for name, entity_type in policy.entity_types.items()
        }

    def is_valid(self, entity_type: str, value: Json) -> bool:
        """Return whether `value` may be a value of `entity_type`.

        Of a type that the policy does not have, or no longer, nothing may be a new value.
        """
        validator = self._by_type.get(entity_type)
        return validator is not None and validator.is_valid(value)

    def require_valid(self, entity_type: str, value: Json) -> None:
        """Return if `value` may be a value of `entity_type`, a type of the policy.

        Raises:
            InvalidRequestError: It may not; the pointer begins with `entity_types.<type>.value`.
        """
        validator = self._by_type[entity_type]
        if validator.is_valid(value):
            return
        place = f"entity_types.{entity_type}.value"
        violation = validator.first_violation(value)
        if violation is None:
            raise InvalidRequestError(f"{place} is not valid", pointer=place)
        pointer = place + violation.pointer
        raise InvalidRequestError(f"{pointer} {violation.problem}", pointer=pointer)


_Kind = jsonschema_rs.ValidationErrorKind


def _worded(kind: jsonschema_rs.ValidationErrorKind, *, keyword: list[str | int]) -> str:
    """Return what `kind` means, naming the schema's demand and never the value."""
    match kind:
        case _Kind.Required(property=name):
            return f"has no member {_shown(name)}, which is required"
        case (
            _Kind.AdditionalProperties(unexpected=names)
            | _Kind.UnevaluatedProperties(unexpected=names)
        ):
            return f"has members that are not allowed: {_listed(sorted(names))}"
        case _Kind.Type(types=types):
            return f"must be of type {' or '.join(types)}"
        case _Kind.Constant(expected_value=value):
            return f"must be {_shown(value)}"
        case _Kind.Enum(options=options):
            return f"must be one of {_listed(options)}"
        case _Kind.OneOfNotValid() | _Kind.AnyOf():
            return "fits none of the alternatives that are allowed here"
        case _Kind.OneOfMultipleValid():
            return "fits more than one of the alternatives of which it must fit exactly one"
        case _Kind.MinLength(limit=limit):
            return f"must have {limit} or more characters"
        case _Kind.MaxLength(limit=limit):
            return f"must have {limit} or fewer characters"
        case _Kind.MinItems(limit=limit):
            return f"must have {limit} or more items"
        case _Kind.MaxItems(limit=limit):
            return f"must have {limit} or fewer items"
        case _Kind.MinProperties(limit=limit):
            return f"must have {limit} or more members"
        case _Kind.MaxProperties(limit=limit):
            return f"must have {limit} or fewer members"
        case _Kind.Minimum(limit=limit):
            return f"must be {limit} or more"
        case _Kind.Maximum(limit=limit):
            return f"must be {limit} or less"
        case _Kind.ExclusiveMinimum(limit=limit):
            return f"must be more than {limit}"
        case _Kind.ExclusiveMaximum(limit=limit):
            return f"must be less than {limit}"
        case _Kind.MultipleOf(multiple_of=factor):
            return f"must be a multiple of {factor}"
        case _Kind.Pattern(pattern=pattern):
            return f"must match the pattern {_shown(pattern)}"
        case _Kind.UniqueItems():
            return "must not hold an item twice"
        case _Kind.FalseSchema() if keyword == ["additionalProperties"]:
            return "must not have any member"
        case _Kind.FalseSchema():
            return "is not allowed"
        case _:
            return f'does not satisfy "{kind.name}" of its schema'


def _listed(values: Sequence[object]) -> str:
    shown = ", ".join(map(_shown, values[:_SHOWN_VALUES]))
    return shown + (", …" if len(values) > _SHOWN_VALUES else "")


def _shown(value: object) -> str:
    """Return `value` as JSON, cut short: names of members come from requests and may be long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
