"""What a provider does not claim it refuses, by that name and without an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Consistency,
    Publish,
    SessionRequirement,
    UnsupportedError,
)
from patchouli.provider_conformance.asking import committed, unchanged
from patchouli.provider_conformance.builders import (
    NOW,
    ORIGIN,
    SCOPE,
    changes,
    control,
    create,
    entity,
    probe,
    read,
    record,
    retrieve,
    staging,
    unit,
    update,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.provider import Provider

A, B = entity("a"), entity("b")
SESSION = control("session")


def within(**guarantees: bool) -> Consistency:
    """Return the requirement of one session."""
    members = {"monotonic_reads": False, "read_your_writes": False} | guarantees
    return Consistency(sessions=(SessionRequirement(key=SESSION, **members),))


AFTER = Consistency(minimum_tokens=(CausalToken("token-v1"),))
IN_UNIT = staging(unit())
PUBLISH = Publish(unit=unit(), recorded_at_unix_ms=NOW)
RECORD = record(control("i"))
LINEAR = Consistency(linearization_keys=(control("domain"),))
QUESTIONS: list[tuple[str, Callable[[Provider], Awaitable[object]]]] = [
    ("change_stream", lambda p: p.read_changes(changes())),
    ("change_stream", lambda p: p.wait_for_changes(SCOPE, ORIGIN)),
    ("retrieval", lambda p: p.retrieve(retrieve())),
    ("idempotency", lambda p: p.read(read(A, idempotency=probe(control("i"))))),
    ("idempotency", lambda p: p.commit(update(A, "v1", "v2", idempotency=record(control("i"))))),
    ("work_units", lambda p: p.read(read(A, unit=unit()))),
    ("work_units", lambda p: p.retrieve(retrieve(unit=unit()))),
    ("work_units", lambda p: p.commit(update(A, "v1", "v2", staging=staging(unit())))),
    ("work_units", lambda p: p.publish(PUBLISH)),
    ("work_units", lambda p: p.commit(create(B, staging=staging(unit(), close=True)))),
    (
        "work_units",
        lambda p: p.publish(Publish(unit=unit(), recorded_at_unix_ms=NOW, discard=True)),
    ),
    ("idempotency", lambda p: p.commit(create(B, "b1", staging=IN_UNIT, idempotency=RECORD))),
    ("idempotency", lambda p: p.read(read(A, idempotency=probe(control("i")), unit=unit()))),
    ("causal_reads", lambda p: p.read(read(A, consistency=AFTER, unit=unit()))),
    ("linearizable_reads", lambda p: p.retrieve(retrieve(consistency=LINEAR))),
    ("monotonic_reads", lambda p: p.retrieve(retrieve(consistency=within(monotonic_reads=True)))),
    ("read_your_writes", lambda p: p.retrieve(retrieve(consistency=within(read_your_writes=True)))),
    ("read_your_writes", lambda p: p.commit(create(B, staging=IN_UNIT, write_sessions=(SESSION,)))),
    ("causal_reads", lambda p: p.read(read(A, consistency=AFTER))),
    ("causal_reads", lambda p: p.retrieve(retrieve(consistency=AFTER))),
    ("linearizable_reads", lambda p: p.read(read(A, consistency=LINEAR))),
    ("monotonic_reads", lambda p: p.read(read(A, consistency=within(monotonic_reads=True)))),
    ("read_your_writes", lambda p: p.read(read(A, consistency=within(read_your_writes=True)))),
    ("read_your_writes", lambda p: p.commit(update(A, "v1", "v2", write_sessions=(SESSION,)))),
]


class RefusalConformance(ProviderSuite):
    """One case for each use of each claim; those of claims that are made are left out."""

    @pytest.mark.parametrize(
        ("claim", "ask"),
        QUESTIONS,
        ids=[f"{number}-{claim}" for number, (claim, _) in enumerate(QUESTIONS)],
    )
    async def test_what_is_not_claimed_is_refused_without_an_effect(
        self,
        provider: Provider,
        claim: str,
        ask: Callable[[Provider], Awaitable[object]],
    ) -> None:
        if getattr(provider.capabilities(), claim):
            pytest.skip(f"offered: {claim}")
        await committed(provider, create(A))

        async with unchanged(provider, A):
            with pytest.raises(UnsupportedError):
                await ask(provider)
