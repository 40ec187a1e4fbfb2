"""The first steps with every configuration document: read it, then hold it against its schema.

`jsonschema` finds the defects, because its errors say enough to be explained; the words are ours.
What to write instead comes from the descriptions in the schema, so that editors and errors say the
same.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from patchouli.backend.config.dialect import schema_errors
from patchouli.backend.config.places import Place
from patchouli.backend.config.reading import JsonReadError, read_json
from patchouli.backend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema import ValidationError
    from patchouli.backend.config.reading import Document

Source = Path | str | bytes
"""A file (`Path`), or the text of a document itself (`str`, `bytes`)."""

_TAGS = ("mode", "kind")  # the member that tells the variants of an object apart
_NAMED_LIMIT = 5  # names that one message lists


def read_document(source: Source) -> tuple[Document, str | None]:
    """Return the JSON document in `source` and the name by which errors call it.

    Raises:
        ConfigurationError: The file cannot be read (`File`), or holds no strict JSON (`Json`).
    """
    name = str(source) if isinstance(source, Path) else None
    try:
        return read_json(source.read_bytes() if isinstance(source, Path) else source), name
    except JsonReadError as error:
        raise ConfigurationError(
            kind="Json",
            path="",
            rule="json",
            problem=error.problem,
            remedy=error.remedy,
            document=name,
            line=error.position.line,
            column=error.position.column,
        ) from error
    except OSError as error:
        raise ConfigurationError(
            kind="File",
            path="",
            rule="file",
            problem=f"the file cannot be read: {error.strerror or type(error).__name__}",
            remedy="Name an existing file that you may read.",
            document=name,
        ) from error


def schema_findings(
    document: Document, schema: dict[str, Any]
) -> list[tuple[Place, Place, str, str]]:
    """Return (place, place to show, problem, remedy) of every defect, in document order."""
    found: dict[tuple[tuple[str | int, ...], str], ValidationError] = {}
    for error in schema_errors(schema, document.value):
        # Several missing members of one object are several errors, but one thing to say.
        found.setdefault((tuple(error.absolute_path), str(error.validator)), error)
    results: list[tuple[Place, Place, str, str]] = []
    for error in found.values():
        place = Place(tuple(error.absolute_path))
        problem, remedy = _explained(error, schema)
        unknown = _unknown_members(error) if error.validator == "additionalProperties" else []
        results.append((place, place / unknown[0] if unknown else place, problem, remedy))
    return sorted(results, key=lambda result: document.offset(result[0].pointer))


def located(
    error: ConfigurationError, document: Document, name: str | None, place: Place
) -> ConfigurationError:
    """Return `error` with the name of its document and the line of `place` in it."""
    position = document.position(place.pointer)
    return ConfigurationError(
        kind=error.kind,
        path=error.path,
        rule=error.rule,
        problem=error.problem,
        remedy=error.remedy,
        document=name,
        line=position.line,
        column=position.column,
    )


def _explained(error: ValidationError, root: dict[str, Any]) -> tuple[str, str]:
    """Return what is wrong and what to write instead."""
    wanted: Any = error.validator_value
    instance: Any = error.instance
    schema = cast("dict[str, Any]", error.schema)
    description = _description(schema, root)
    write = f"Write {description}." if description else "Correct it."
    match error.validator:
        case "required":
            missing = [name for name in wanted if name not in instance]
            problem = f"{_members(missing)} missing"
            return problem, "Add " + "; ".join(
                f'"{name}": {_description(schema["properties"].get(name, {}), root)}'
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


def _known_members(unknown: str, schema: dict[str, Any]) -> str:
    known = list(schema["properties"])
    close = get_close_matches(unknown, known, n=1)
    guess = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{guess}Remove it; the members here are {', '.join(known)}."


def _members(names: Iterable[str]) -> str:
    listed = [f'"{name}"' for name in names]
    shown = ", ".join(listed[:_NAMED_LIMIT]) + (", …" if len(listed) > _NAMED_LIMIT else "")
    return f"the member {shown} is" if len(listed) == 1 else f"the members {shown} are"


def _description(schema: dict[str, Any], root: dict[str, Any]) -> str:
    """Return the description of `schema`, or that of what it refers to."""
    while "description" not in schema and "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema.get("description", "")


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
