"""What a policy asks of the provider, compared with what the provider says it can do.

Everything is compared before the provider is started. A policy that asks for something that is not
offered is refused as a whole: no request is ever served by less than its behavior promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from patchouli.backend.config.models import (
    BatchPublication,
    CausalAfter,
    KeyedIdempotency,
    Linearizable,
)
from patchouli.backend.config.places import Place
from patchouli.backend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.backend.config.models import Behavior, Policy
    from patchouli.provider import Capabilities

CapabilityName = Literal[
    "authority",
    "causal_reads",
    "change_stream",
    "idempotency",
    "linearizable_reads",
    "monotonic_reads",
    "read_your_writes",
    "replica",
    "retrieval",
    "work_units",
]

ALWAYS_NEEDED: tuple[CapabilityName, ...] = ("change_stream", "retrieval", "authority")
_SOURCES = frozenset({"authority", "replica"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityFinding:
    """One thing that a policy asks for and the provider does not offer.

    `entity_type` is None where every policy asks for it; `rule` is None there and for a fallback.
    """

    entity_type: str | None
    rule: str | None
    capability: CapabilityName
    place: Place
    problem: str
    remedy: str

    def error(self) -> ConfigurationError:
        """Return the finding as an error of kind `Capability`."""
        return ConfigurationError(
            kind="Capability",
            path=self.place.dotted,
            rule=f"M-{self.capability}",
            problem=self.problem,
            remedy=self.remedy,
        )


def match_capabilities(policy: Policy, capabilities: Capabilities) -> list[CapabilityFinding]:
    """Return what `policy` asks for and `capabilities` lack, in the order in which it is asked."""
    findings = [
        CapabilityFinding(
            entity_type=None,
            rule=None,
            capability=name,
            place=Place(),
            problem=f'the provider does not offer "{name}", which every policy needs',
            remedy="Use another provider.",
        )
        for name in ALWAYS_NEEDED
        if not getattr(capabilities, name)
    ]
    for entity_type, rule, index, behavior in policy.behaviors():
        root = Place(("entity_types", entity_type))
        place = root / "fallback" if index is None else root / "rules" / index / "behavior"
        findings += [
            CapabilityFinding(
                entity_type=entity_type,
                rule=rule,
                capability=capability,
                place=here,
                problem=problem,
                remedy=remedy,
            )
            for capability, here, problem, remedy in _missing(place, behavior, capabilities)
        ]
    return findings


def require_capabilities(policy: Policy, capabilities: Capabilities) -> None:
    """Return if `policy` can be kept by a provider with `capabilities`.

    Raises:
        ConfigurationError: Something that the policy asks for is not offered; the first such thing,
            with kind `Capability`.
    """
    for finding in match_capabilities(policy, capabilities):
        raise finding.error()


def _missing(
    place: Place, behavior: Behavior, capabilities: Capabilities
) -> Iterator[tuple[CapabilityName, Place, str, str]]:
    consistency = behavior.consistency
    acquire, here = consistency.acquire, place / "consistency" / "acquire"
    linearizable = any(isinstance(found, Linearizable) for found in acquire.requirements)
    if "authority" not in acquire.allow_sources:
        yield (
            "authority",
            here / "allow_sources",
            "mutations need the authority, which is not among the allowed sources",
            'Add "authority".',
        )
    effective = set(acquire.allow_sources) & ({"authority"} if linearizable else _SOURCES)
    if not any(getattr(capabilities, source) for source in effective):
        yield (
            "replica" if effective == {"replica"} else "authority",
            here / "allow_sources",
            "the provider offers none of the sources that may be used here",
            "Allow a source that it offers, or use another provider.",
        )
    if not capabilities.causal_reads and any(
        isinstance(found, CausalAfter) for found in acquire.requirements
    ):
        yield ("causal_reads", here / "requirements", *_lacks("causal_reads"))
    if not capabilities.linearizable_reads and linearizable:
        yield ("linearizable_reads", here / "requirements", *_lacks("linearizable_reads"))
    for index, session in enumerate(consistency.sessions):
        at = place / "consistency" / "sessions" / index / "guarantees"
        if "monotonic_reads" in session.guarantees and not capabilities.monotonic_reads:
            yield ("monotonic_reads", at, *_lacks("monotonic_reads"))
        if "read_your_writes" in session.guarantees and not capabilities.read_your_writes:
            yield ("read_your_writes", at, *_lacks("read_your_writes"))
    if isinstance(behavior.idempotency, KeyedIdempotency) and not capabilities.idempotency:
        yield ("idempotency", place / "idempotency" / "mode", *_lacks("idempotency"))
    if isinstance(behavior.publication, BatchPublication) and not capabilities.work_units:
        yield ("work_units", place / "publication" / "mode", *_lacks("work_units"))


def _lacks(capability: CapabilityName) -> tuple[str, str]:
    return (
        f'the provider does not offer "{capability}"',
        "Remove what asks for it, or use another provider.",
    )
