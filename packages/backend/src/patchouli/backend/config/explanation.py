"""Words for what is wrong with a document or with a schema inside it.

`jsonschema` finds the defects, because its errors say enough to be explained; the words are ours.
What to write instead comes from the descriptions in the schema, so that editors and errors say the
same. Only what was already refused is explained, so a start without defects never loads this.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from jsonschema import Draft202012Validator
from patchouli.backend.config.places import Defect, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jsonschema import ValidationError
    from patchouli.backend.config.models import JsonSchema
    from patchouli.backend.config.reading import Document

_TAGS = ("mode", "kind")  # the member that tells the variants of an object apart
_NAMED_LIMIT = 5  # names that one message lists


def document_defects(document: Document, schema: dict[str, Any]) -> list[Defect]:
    """Return every violation of `schema` by `document`, in document order."""
    found: dict[tuple[tuple[str | int, ...], str], ValidationError] = {}
    for error in schema_errors(schema, document.value):
        # Several missing members of one object are several errors, but one thing to say.
        found.setdefault((tuple(error.absolute_path), str(error.validator)), error)
    defects = [_defect(error, schema) for error in found.values()]
    return sorted(defects, key=lambda defect: document.offset(defect.place))


def _defect(error: ValidationError, root: dict[str, Any]) -> Defect:
    members: list[str] = []
    if error.validator == "additionalProperties":
        members = _unknown_members(error)
    elif error.validator == "required":
        members = _missing_members(error)
    problem, remedy = _explained(error, root)
    return Defect(
        place=Place(tuple(error.absolute_path)),
        member=members[0] if members else None,
        problem=problem,
        remedy=remedy,
    )


def schema_defect(schema: JsonSchema) -> tuple[Place, str, str] | None:
    """Return (place, problem, remedy) where `schema` violates the meta-schema, or None.

    `format` is not asserted: whether a pattern is a regular expression is decided by the engine
    that will run it, when the schema is compiled.
    """
    error = next(iter(schema_errors(Draft202012Validator.META_SCHEMA, schema)), None)
    if error is None:
        return None
    place = Place(tuple(error.absolute_path))
    names = [token for token in place.tokens if isinstance(token, str)]
    keyword = names[-1] if names else ""
    if keyword == "items" and isinstance(error.instance, list):
        remedy = 'Write a list of schemas under "prefixItems", as draft 2020-12 does.'
    elif keyword.startswith("exclusive") and isinstance(error.instance, bool):
        remedy = f'Write the bound itself under "{keyword}", as draft 2020-12 does.'
    elif keyword:
        remedy = f'Write what draft 2020-12 allows for "{keyword}".'
    else:
        remedy = "Write a JSON Schema: an object, true or false."
    return place, "the schema is not valid JSON Schema of draft 2020-12", remedy


def schema_errors(schema: dict[str, Any], value: object) -> list[ValidationError]:
    """Return what `jsonschema` says about `value`, outermost first, else in the schema's order."""
    errors = cast(
        "Iterator[ValidationError]",
        Draft202012Validator(schema).iter_errors(value),  # pyright: ignore[reportUnknownMemberType,reportArgumentType] -- the stub is partly untyped
    )
    return sorted(errors, key=lambda error: len(error.absolute_path))


def _explained(error: ValidationError, root: dict[str, Any]) -> tuple[str, str]:
    """Return what is wrong and what to write instead."""
    wanted: Any = error.validator_value
    instance: Any = error.instance
    schema = cast("dict[str, Any]", error.schema)
    description = _description(schema, root)
    write = f"Write {description}." if description else "Correct it."
    match error.validator:
        case "required":
            missing = _missing_members(error)
            problem = f"{_members(missing)} missing"
            return problem, "Add " + "; ".join(
                f'"{name}": {_description(schema.get("properties", {}).get(name, {}), root)}'
                for name in missing
            ) + "."
        case "additionalProperties":
            unknown = _unknown_members(error)
            return f"{_members(unknown)} not known here", _known_members(unknown[0], schema)
        case "oneOf":
            return _explained_variant(error, root, write)
        case "type":
            kinds = [wanted] if isinstance(wanted, str) else wanted
            return f"the value is {_kind(instance)}, not {' or '.join(map(_article, kinds))}", write
        case "propertyNames":
            return "a member has an empty name", "Give the member a name."
        case "uniqueItems":
            return "an item is listed twice", write
        case "minItems" | "minLength" | "minProperties":
            return "the value is empty", write
        case _:
            return "the value is not allowed", write


def _explained_variant(error: ValidationError, root: dict[str, Any], write: str) -> tuple[str, str]:
    """Return what is wrong with an object that fits none of its variants.

    The place of the error is the object. If its tag names a variant, the defect of that variant is
    what the reader wants to know.
    """
    index = _variant_meant(error)
    inner = [found for found in error.context or [] if found.schema_path[0] == index]
    if inner:
        problem, remedy = _explained(inner[0], root)
        place = Place(tuple(inner[0].relative_path)).dotted
        return (f"at {place}: {problem}" if place else problem), remedy
    return "the value is none of the variants that are allowed here", write


def _variant_meant(error: ValidationError) -> int | None:
    """Return the index of the variant that the tag of the instance names."""
    instance = cast("object", error.instance)
    if not isinstance(instance, dict):
        return None
    members = cast("dict[str, Any]", instance)
    for index, variant in enumerate(cast("list[dict[str, Any]]", error.validator_value)):
        for tag in _TAGS:
            constant = variant["properties"].get(tag, {}).get("const")
            if constant is not None and members.get(tag) == constant:
                return index
    return None


def _unknown_members(error: ValidationError) -> list[str]:
    schema = cast("dict[str, Any]", error.schema)
    known = cast("dict[str, Any]", schema["properties"])
    return [name for name in cast("dict[str, Any]", error.instance) if name not in known]


def _missing_members(error: ValidationError) -> list[str]:
    instance = cast("dict[str, Any]", error.instance)
    return [name for name in cast("list[str]", error.validator_value) if name not in instance]


def _known_members(unknown: str, schema: dict[str, Any]) -> str:
    known = list(schema["properties"])
    close = get_close_matches(unknown, known, n=1)
    guess = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{guess}Remove it; the members here are {', '.join(known)}."


def _members(names: Iterable[str]) -> str:
    listed = [f'"{name}"' for name in names]
    shown = ", ".join(listed[:_NAMED_LIMIT]) + (", …" if len(listed) > _NAMED_LIMIT else "")
    return f"the member {shown} is" if len(listed) == 1 else f"the members {shown} are"


def _description(schema: JsonSchema, root: dict[str, Any]) -> str:
    """Return the description of `schema`, or that of what it refers to."""
    found = schema
    while isinstance(found, dict) and "description" not in found and "$ref" in found:
        found = cast("JsonSchema", root["$defs"][found["$ref"].removeprefix("#/$defs/")])
    return "" if isinstance(found, bool) else found.get("description", "")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "an array"
        case _:
            return "an object"


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aio' else 'a'} {kind}"
