"""JSON Schemas inside configuration documents: what is accepted, and how complaints are worded.

The dialect is draft 2020-12 as `jsonschema-rs` compiles it. A `$schema` that names an older known
draft is read as 2020-12; an unknown one is refused. References resolve to the schema itself, to the
built-in URNs and to the JSON Schema meta-schemas. Nothing is ever fetched.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

import jsonschema_rs
from jsonschema import Draft202012Validator as MetaValidator
from jsonschema_specifications import (  # pyright: ignore[reportMissingTypeStubs] -- it has none
    REGISTRY as META_SCHEMAS,
)
from patchouli.backend.config.reading import escape
from patchouli.backend.config.resources import builtin_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema import ValidationError
    from patchouli.backend.config.models import JsonSchema

DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
KNOWN_DRAFTS = frozenset(
    {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        DRAFT_2020_12,
    }
)
_NOT_FOR_US = "draft-03"  # `jsonschema-rs` cannot read this one meta-schema

_ONE = (
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)


class SchemaError(ValueError):
    """Raised when a JSON Schema cannot be used; `pointer` says where in the schema."""

    def __init__(self, problem: str, remedy: str, pointer: str) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.pointer = pointer


def require_meta_valid(schema: JsonSchema) -> None:
    """Return if `schema` satisfies the meta-schema of draft 2020-12.

    `format` is not asserted: whether a pattern is a regular expression is decided by the engine
    that will run it, when the schema is compiled.

    Raises:
        SchemaError: It does not.
    """
    error = next(iter(schema_errors(MetaValidator.META_SCHEMA, as_2020_12(schema))), None)
    if error is None:
        return
    pointer = "".join(f"/{escape(str(token))}" for token in error.absolute_path)
    keyword = error.absolute_path[-1] if error.absolute_path else ""
    raise SchemaError(
        f"the schema is not valid JSON Schema: the value at {pointer or 'its root'} is not allowed",
        f'Write a value that draft 2020-12 allows for "{keyword}".'
        if keyword
        else "Write a JSON Schema: an object, true or false.",
        pointer,
    )


def schema_errors(schema: dict[str, Any], value: object) -> list[ValidationError]:
    """Return what `jsonschema` says about `value`, outermost first, else in the schema's order."""
    errors = cast(
        "Iterator[ValidationError]",
        MetaValidator(schema).iter_errors(value),  # pyright: ignore[reportUnknownMemberType,reportArgumentType] -- the stub is partly untyped
    )
    return sorted(errors, key=lambda error: len(error.absolute_path))


def compile_schema(schema: JsonSchema) -> jsonschema_rs.Draft202012Validator:
    """Return `schema` compiled; every reference that can be reached is resolved.

    The validator holds no state and may be used from any thread. `format` stays an annotation.

    Raises:
        SchemaError: The dialect is unknown, a reference does not resolve, or a pattern is none.
    """
    for pointer, part in subschemas(schema):
        dialect = part.get("$schema", DRAFT_2020_12)
        if not isinstance(dialect, str) or dialect.removesuffix("#") not in KNOWN_DRAFTS:
            raise SchemaError(
                f'"$schema" names {dialect!r}, which is no known draft of JSON Schema',
                f'Write "{DRAFT_2020_12}", or leave "$schema" out.',
                f"{pointer}/$schema",
            )
    readable = as_2020_12(schema)
    try:
        return _compile(readable)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise _explained(readable) from error


def subschemas(schema: JsonSchema) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object schema in `schema` with its JSON Pointer, outermost first."""
    pending: list[tuple[str, Any]] = [("", schema)]
    while pending:
        pointer, part = pending.pop()
        if not isinstance(part, dict):
            continue
        part = cast("dict[str, Any]", part)
        yield pointer, part
        pending += [(f"{pointer}/{key}", part[key]) for key in _ONE if key in part]
        for key in _LIST:
            if isinstance(part.get(key), list):
                pending += [(f"{pointer}/{key}/{i}", item) for i, item in enumerate(part[key])]
        for key in _MAP:
            if isinstance(part.get(key), dict):
                members = cast("dict[str, Any]", part[key])
                pending += [(f"{pointer}/{key}/{escape(n)}", v) for n, v in members.items()]


def as_2020_12(schema: JsonSchema) -> JsonSchema:
    """Return `schema` with each known older `$schema` replaced; `schema` itself is not changed."""
    if not any(_is_older(part) for _, part in subschemas(schema)):
        return schema
    copied = _copied(schema)
    for _, part in subschemas(copied):
        if _is_older(part):
            part["$schema"] = DRAFT_2020_12
    return cast("JsonSchema", copied)


def _is_older(schema: dict[str, Any]) -> bool:
    dialect = schema.get("$schema", DRAFT_2020_12)
    return dialect != DRAFT_2020_12 and str(dialect).removesuffix("#") in KNOWN_DRAFTS


def _copied(value: Any) -> Any:  # any JSON value
    if isinstance(value, dict):
        return {name: _copied(member) for name, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    return value


def _compile(schema: JsonSchema) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        schema, registry=_registry(), offline=True, validate_formats=False
    )


@cache
def _registry() -> jsonschema_rs.Registry:
    meta = {
        uri: cast("dict[str, Any]", META_SCHEMAS.contents(uri))
        for uri in META_SCHEMAS
        if _NOT_FOR_US not in uri
    }
    return jsonschema_rs.Registry([*meta.items(), *builtin_schemas().items()])


def _explained(schema: JsonSchema) -> SchemaError:
    """Return why `schema` does not compile, by compiling its suspicious parts alone."""
    for pointer, part in subschemas(schema):
        patterns = [("pattern", part.get("pattern"))]
        if isinstance(part.get("patternProperties"), dict):
            patterns += [(f"patternProperties/{escape(p)}", p) for p in part["patternProperties"]]
        for key, pattern in patterns:
            if isinstance(pattern, str) and not _compiles({"pattern": pattern}):
                return SchemaError(
                    f"{pattern!r} is not a regular expression that can be compiled",
                    "Correct the pattern.",
                    f"{pointer}/{key}",
                )
    for pointer, part in subschemas(schema):
        for key in ("$ref", "$dynamicRef"):
            if key in part and not _compiles(_with_only(schema, part[key])):
                return SchemaError(
                    f'"{key}" names {part[key]!r}, which does not exist here',
                    'Refer to a part of the same schema (such as "#/$defs/name"), to one of '
                    + ", ".join(sorted(builtin_schemas()))
                    + ", or to a JSON Schema meta-schema; nothing is loaded from elsewhere.",
                    f"{pointer}/{key}",
                )
    return SchemaError(
        "the schema cannot be compiled", "Simplify it until it is accepted; see its references.", ""
    )


def _with_only(schema: JsonSchema, reference: Any) -> JsonSchema:
    """Return a schema whose one reachable reference is `reference`, resolved as in `schema`."""
    if not isinstance(schema, dict) or not str(reference).startswith("#"):
        return {"$ref": reference}
    inert = {key: value for key, value in schema.items() if key in ("$defs", "definitions", "$id")}
    return {**inert, "$ref": reference}


def _compiles(schema: JsonSchema) -> bool:
    try:
        _compile(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return False
    return True
