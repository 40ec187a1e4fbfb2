"""The first steps with every configuration document: read it, then hold it against its schema."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jsonschema_rs import Draft202012Validator
from patchouli.backend.config.reading import JsonReadError, read_json
from patchouli.backend.config.resources import configuration_schema
from patchouli.backend.errors import ConfigurationError

if TYPE_CHECKING:
    from patchouli.backend.config.places import Defect, Place
    from patchouli.backend.config.reading import Document
    from patchouli.backend.config.resources import ResourceName

Source = Path | str | bytes
"""A file (`Path`), or the text of a document itself (`str`, `bytes`)."""


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


def shape_defects(document: Document, schema: ResourceName) -> list[Defect]:
    """Return every violation of a shipped schema, in document order."""
    if _compiled(schema).is_valid(document.value):
        return []
    # Loading `jsonschema` costs more than the whole start, so it waits until there is an error.
    from patchouli.backend.config.explanation import (  # noqa: PLC0415 -- see above
        document_defects,
    )

    return document_defects(document, configuration_schema(schema))


@cache
def _compiled(schema: ResourceName) -> Draft202012Validator:
    return Draft202012Validator(configuration_schema(schema), offline=True)


def located(
    error: ConfigurationError, document: Document, name: str | None, place: Place
) -> ConfigurationError:
    """Return `error` with the name of its document and the line of `place` in it."""
    position = document.position(place)
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
