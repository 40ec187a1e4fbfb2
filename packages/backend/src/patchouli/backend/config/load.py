"""Reading a policy: text, schema, types, rules, in this order; the first failure ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from patchouli.backend.config.advice import PolicyWarning, advice
from patchouli.backend.config.check import findings
from patchouli.backend.config.models import SECONDS_MAX, VERSION_MAX, Policy
from patchouli.backend.config.places import Place
from patchouli.backend.config.resources import POLICY_SCHEMA
from patchouli.backend.config.shape import located, read_document, shape_defects
from patchouli.backend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.backend.config.reading import Document
    from patchouli.backend.config.shape import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy that passed every check, and what is probably not meant in it."""

    policy: Policy
    warnings: tuple[PolicyWarning, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """Everything there is to say about a policy document.

    `errors` holds all defects of the first stage that found one. `warnings` are complete only
    without errors.
    """

    errors: tuple[ConfigurationError, ...]
    warnings: tuple[PolicyWarning, ...]


def load_policy(source: Source) -> LoadedPolicy:
    """Return the policy in a file (a `Path`) or in a text (`str` or `bytes`).

    Raises:
        ConfigurationError: The first defect, in the order of the stages.
    """
    document, name = read_document(source)
    for error in _defects(document, name):
        raise error
    policy = decode(document.value)
    return LoadedPolicy(policy=policy, warnings=(*_duplicate_members(document), *advice(policy)))


def check_policy_document(source: Source) -> PolicyReport:
    """Return every defect of the first stage that finds one, and the warnings."""
    try:
        document, name = read_document(source)
    except ConfigurationError as error:
        return PolicyReport(errors=(error,), warnings=())
    errors = tuple(_defects(document, name))
    warnings = () if errors else advice(decode(document.value))
    return PolicyReport(errors=errors, warnings=(*_duplicate_members(document), *warnings))


def decode(value: object) -> Policy:
    """Return the policy that `value` spells; it must have passed the schema and integer stages."""
    return Policy.model_validate(value)


def _defects(document: Document, name: str | None) -> Iterator[ConfigurationError]:
    """Yield the defects of the first stage (B, C or D) that finds any."""
    for stage in (_schema_defects, _integer_defects, _rule_defects):
        found = False
        for error, place in stage(document):
            found = True
            yield located(error, document, name, place)
        if found:
            return


def _schema_defects(document: Document) -> Iterator[tuple[ConfigurationError, Place]]:
    for defect in shape_defects(document, POLICY_SCHEMA):
        yield (
            ConfigurationError(
                kind="Schema",
                path=defect.place.pointer,
                rule="schema",
                problem=defect.problem,
                remedy=defect.remedy,
            ),
            defect.place if defect.member is None else defect.place / defect.member,
        )


def _integer_defects(document: Document) -> Iterator[tuple[ConfigurationError, Place]]:
    """Yield the integers that are written like 1.0 or are too large.

    The schema compares numbers by their mathematical value and lets both pass.
    """
    for place, value, largest in _integers(cast("dict[str, Any]", document.value)):
        if type(value) is int and value <= largest:
            continue
        yield (
            ConfigurationError(
                kind="Json",
                path=place.dotted,
                rule="integer",
                problem="the value is no integer of this format",
                remedy=f"Write digits alone, without fraction or exponent, at most {largest}.",
            ),
            place,
        )


def _integers(policy: dict[str, Any]) -> Iterator[tuple[Place, object, int]]:
    root = Place()
    yield root / "version", policy["version"], VERSION_MAX
    for name, value in policy["retention"].items():
        yield root / "retention" / name, value, SECONDS_MAX
    for type_name, entity_type in policy["entity_types"].items():
        here = root / "entity_types" / type_name
        behaviors = [
            (here / "rules" / index / "behavior", rule["behavior"])
            for index, rule in enumerate(entity_type["rules"])
        ]
        for place, behavior in [*behaviors, (here / "fallback", entity_type["fallback"])]:
            if "staging_ttl_ms" in behavior["publication"]:
                yield (
                    place / "publication" / "staging_ttl_ms",
                    behavior["publication"]["staging_ttl_ms"],
                    SECONDS_MAX,
                )


def _rule_defects(document: Document) -> Iterator[tuple[ConfigurationError, Place]]:
    for finding in findings(decode(document.value)):
        yield finding.error(), finding.place


def _duplicate_members(document: Document) -> Iterator[PolicyWarning]:
    for place, offset in document.duplicates:
        position = document.position_of(offset)
        yield PolicyWarning(
            path=place.dotted,
            message=f"the member is written more than once (again in line {position.line}, column "
            f"{position.column}); the last one counts. Keep one of them.",
        )
