"""JSON Schemas inside configuration documents: what is accepted, and how complaints are worded.

The dialect is draft 2020-12 as `jsonschema-rs` compiles it. A `$schema` that names an older known
draft is read as 2020-12; an unknown one is refused. References resolve to the schema itself, to the
built-in URNs and to the JSON Schema meta-schemas. Nothing is ever fetched.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

import jsonschema_rs
from patchouli.backend.config.places import Place
from patchouli.backend.config.resources import builtin_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_REFERENCES = ("$ref", "$dynamicRef")
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
    """Raised when a JSON Schema cannot be used.

    Attributes:
        is_malformed: Whether it is no JSON Schema at all, so that it was not tried to compile.
        place: Where in the schema.
        problem: What is wrong.
        remedy: What to write instead.
    """

    def __init__(
        self, problem: str, remedy: str, place: Place, *, is_malformed: bool = False
    ) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.place = place
        self.is_malformed = is_malformed


def compile_schema(schema: JsonSchema) -> jsonschema_rs.Draft202012Validator:
    """Return `schema` compiled; every reference that can be reached is resolved.

    The validator holds no state and may be used from any thread. `format` stays an annotation.

    Raises:
        SchemaError: The schema violates the meta-schema, its dialect is unknown, a reference does
            not resolve, or a pattern is none.
    """
    readable = as_2020_12(schema)
    try:
        validator = _compile(readable)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise _explained(schema, readable) from error
    defect = _unknown_dialect(schema)
    if defect is not None:
        raise defect
    return validator


def _unknown_dialect(schema: JsonSchema) -> SchemaError | None:
    for place, part in subschemas(schema):
        dialect = part.get("$schema", DRAFT_2020_12)
        if str(dialect).removesuffix("#") not in KNOWN_DRAFTS:
            return SchemaError(
                f'"$schema" names "{dialect}", which is no known draft of JSON Schema',
                f'Write "{DRAFT_2020_12}", or leave "$schema" out.',
                place / "$schema",
            )
    return None


def subschemas(schema: JsonSchema) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every object schema in `schema` and where it stands, outer ones before inner ones."""
    pending: list[tuple[Place, Any]] = [(Place(), schema)]
    for place, candidate in pending:
        if not isinstance(candidate, dict):
            continue
        part = cast("dict[str, Any]", candidate)
        yield place, part
        pending += [(place / key, part[key]) for key in _ONE if key in part]
        for key in _LIST:
            if isinstance(part.get(key), list):
                pending += [(place / key / i, item) for i, item in enumerate(part[key])]
        for key in _MAP:
            if isinstance(part.get(key), dict):
                members = cast("dict[str, Any]", part[key])
                pending += [(place / key / name, member) for name, member in members.items()]


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
    registry = _registry_of_drafts() if _names_a_draft(schema) else _registry()
    return jsonschema_rs.Draft202012Validator(
        schema, registry=registry, offline=True, validate_formats=False
    )


def _names_a_draft(schema: JsonSchema) -> bool:
    return any(
        "//json-schema.org/" in str(part.get(key, ""))
        for _, part in subschemas(schema)
        for key in _REFERENCES
    )


@cache
def _registry() -> jsonschema_rs.Registry:
    return jsonschema_rs.Registry(list(builtin_schemas().items()))


@cache
def _registry_of_drafts() -> jsonschema_rs.Registry:
    """Return the built-in schemas and every meta-schema; few policies ask for one."""
    from jsonschema_specifications import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] -- slow to load, and has no stubs
        REGISTRY,
    )

    meta = {
        uri: cast("dict[str, Any]", REGISTRY.contents(uri))
        for uri in REGISTRY
        if _NOT_FOR_US not in uri
    }
    return jsonschema_rs.Registry([*meta.items(), *builtin_schemas().items()])


def _explained(original: JsonSchema, schema: JsonSchema) -> SchemaError:
    """Return why `schema` does not compile, by trying its suspicious parts alone.

    `original` is the same schema with the `$schema` members that were written.
    """
    from patchouli.backend.config.explanation import (  # noqa: PLC0415 -- loads `jsonschema`
        schema_defect,
    )

    defect = schema_defect(schema)
    if defect is not None:
        place, problem, remedy = defect
        return SchemaError(problem, remedy, place, is_malformed=True)
    unknown = _unknown_dialect(original)
    if unknown is not None:
        return unknown
    for place, pattern in _patterns(schema):
        if not _compiles({"pattern": pattern}):
            return SchemaError(
                f'"{pattern}" is no regular expression that can be compiled',
                "Correct the pattern.",
                place,
            )
    for place, reference in _references(schema):
        if not _compiles(_with_only(schema, reference)):
            return SchemaError(
                f'the reference "{reference}" does not resolve',
                'Refer to a part of the same schema (such as "#/$defs/name"), to one of '
                + ", ".join(sorted(builtin_schemas()))
                + ", or to a JSON Schema meta-schema; nothing is loaded from elsewhere.",
                place,
            )
    return SchemaError(
        "the schema cannot be compiled", "Simplify it, beginning with its references.", Place()
    )


def _patterns(schema: JsonSchema) -> Iterator[tuple[Place, str]]:
    for place, part in subschemas(schema):
        if "pattern" in part:
            yield place / "pattern", part["pattern"]
        for pattern in part.get("patternProperties", {}):
            yield place / "patternProperties" / pattern, pattern


def _references(schema: JsonSchema) -> Iterator[tuple[Place, str]]:
    for place, part in subschemas(schema):
        for key in _REFERENCES:
            if key in part:
                yield place / key, part[key]


def _with_only(schema: JsonSchema, reference: str) -> JsonSchema:
    """Return a schema whose first reference is `reference`, resolved as in `schema`."""
    if not isinstance(schema, dict) or not reference.startswith("#"):
        return {"$ref": reference}
    # As a definition the whole schema is not compiled, but its parts can be referred to.
    inert = {key: value for key, value in schema.items() if key in ("$defs", "definitions", "$id")}
    return {**inert, "$ref": reference}


def _compiles(schema: JsonSchema) -> bool:
    try:
        _compile(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return False
    return True
