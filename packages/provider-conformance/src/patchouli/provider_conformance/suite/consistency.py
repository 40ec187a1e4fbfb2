"""What a read must be at least as new as: sources, causal tokens, sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Consistency,
    DeadlineExceededError,
    Reading,
    SessionRequirement,
    Source,
    Unavailable,
)
from patchouli.provider_conformance.asking import committed, page_of, reading
from patchouli.provider_conformance.builders import (
    LATE,
    OTHER_SCOPE,
    control,
    create,
    entity,
    read,
    retrieve,
    unit,
    update,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import ControlKey, Provider
    from patchouli.provider_conformance.suite.base import Reopen

A = entity("a")
A_ELSEWHERE = entity("a", scope=OTHER_SCOPE)


def after(*tokens: str) -> Consistency:
    """Require everything up to the positions of `tokens`."""
    return Consistency(minimum_tokens=tuple(CausalToken(token) for token in tokens))


def session(
    key: ControlKey, *, monotonic: bool = False, own_writes: bool = False
) -> SessionRequirement:
    """Return the requirement of a session."""
    return SessionRequirement(key=key, monotonic_reads=monotonic, read_your_writes=own_writes)


def within(*sessions: SessionRequirement) -> Consistency:
    """Require what `sessions` have seen or written."""
    return Consistency(sessions=sessions)


class SourceConformance(ProviderSuite):
    """A read is answered from an allowed source or not at all."""

    async def test_the_authority_answers_when_it_is_among_the_allowed(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A))
        both = Consistency(allowed_sources=frozenset(Source))

        assert (await reading(provider, read(A, consistency=both))).heads

    async def test_a_replica_that_does_not_exist_does_not_answer(self, provider: Provider) -> None:
        if provider.capabilities().replica:
            pytest.skip("offered: replica")
        await committed(provider, create(A))
        consistency = Consistency(allowed_sources=frozenset({Source.REPLICA}))

        assert isinstance(await provider.read(read(A, consistency=consistency)), Unavailable)
        outcome = await provider.retrieve(retrieve(consistency=consistency))
        assert isinstance(outcome, Unavailable)
        assert outcome.frontier is None  # it will not come to exist while one waits

    async def test_a_retrieval_observes_the_frontier_of_its_scope(self, provider: Provider) -> None:
        empty = (await page_of(provider, retrieve())).observation
        cursor = await committed(provider, create(A))
        await committed(provider, create(A_ELSEWHERE, "far"))

        observation = (await page_of(provider, retrieve())).observation

        assert (empty.frontier, empty.causal_token) == (0, None)
        assert (observation.frontier, observation.causal_token) == (cursor, "token-v1")
        assert observation.source is Source.AUTHORITY


@pytest.mark.requires("causal_reads")
class CausalConformance(ProviderSuite):
    """A causal token stands for a published position of one scope, for ever."""

    async def test_a_known_token_is_satisfied(self, provider: Provider) -> None:
        await committed(provider, create(A))
        await committed(provider, update(A, "v1", "v2"))

        for tokens in (["token-v1"], ["token-v2"], ["token-v1", "token-v2"]):
            found = await reading(provider, read(A, consistency=after(*tokens)))
            assert found.observation.causal_token == "token-v2"

    async def test_an_unknown_token_is_unavailable(self, provider: Provider) -> None:
        cursor = await committed(provider, create(A))
        await committed(provider, create(A_ELSEWHERE, "far"))

        for tokens in (["unknown"], ["token-v1", "unknown"], [""]):
            for outcome in (
                await provider.read(read(A, consistency=after(*tokens))),
                await provider.retrieve(retrieve(consistency=after(*tokens))),
            ):
                assert isinstance(outcome, Unavailable)
                assert outcome.frontier == cursor  # from where to wait for it

    async def test_a_token_counts_in_its_own_scope_only(self, provider: Provider) -> None:
        await committed(provider, create(A))
        await committed(provider, create(A_ELSEWHERE, "far"))

        outcome = await provider.read(read(A, consistency=after("token-far")))

        assert isinstance(outcome, Unavailable)
        await reading(provider, read(A_ELSEWHERE, consistency=after("token-far")))

    async def test_tokens_survive_a_restart(self, provider: Provider, reopen: Reopen) -> None:
        await committed(provider, create(A))
        await committed(provider, update(A, "v1", "v2"))

        again = await reopen(provider)

        await reading(again, read(A, consistency=after("token-v1", "token-v2")))
        outcome = await again.read(read(A, consistency=after("unknown")))
        assert isinstance(outcome, Unavailable)

    async def test_the_token_of_a_refused_commit_is_unknown(self, provider: Provider) -> None:
        await committed(provider, create(A))
        await provider.commit(create(A, "v2"))

        outcome = await provider.read(read(A, consistency=after("token-v2")))

        assert isinstance(outcome, Unavailable)


@pytest.mark.requires("linearizable_reads")
class LinearizableConformance(ProviderSuite):
    """A linearizable read sees every commit that was answered before it began."""

    async def test_a_read_sees_what_was_answered(self, provider: Provider) -> None:
        domain = Consistency(linearization_keys=(control("domain"), control("other")))
        await committed(provider, create(A, "v0"))
        for number in range(20):
            await committed(provider, update(A, f"v{number}", f"v{number + 1}"))

            found = await reading(provider, read(A, consistency=domain))
            page = await page_of(provider, retrieve(consistency=domain))

            assert [head.id for head in found.heads] == [f"v{number + 1}"]
            assert [hit.heads for hit in page.hits] == [found.heads]

    @pytest.mark.requires("work_units")
    async def test_in_a_unit_it_counts_for_the_opening_alone(self, provider: Provider) -> None:
        domain = Consistency(linearization_keys=(control("domain"),))
        await committed(provider, create(A))
        first = await reading(provider, read(A, unit=unit(), consistency=domain))
        await committed(provider, update(A, "v1", "v2"))

        again = await reading(provider, read(A, unit=unit(), consistency=domain))

        assert [head.id for head in first.heads] == ["v1"]
        assert again == first


class SessionConformance(ProviderSuite):
    """A session never reads older state than it has read or written."""

    @pytest.mark.requires("read_your_writes")
    async def test_own_writes_are_in_force_and_survive_a_restart(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        writer = control("writer")
        await committed(provider, create(A, write_sessions=(writer, control("both"))))
        consistency = within(session(writer, own_writes=True))
        first = await provider.read(read(A, consistency=consistency))

        again = await reopen(provider)

        assert isinstance(first, Reading)
        await reading(again, read(A, consistency=consistency))

    @pytest.mark.requires("monotonic_reads")
    async def test_reads_are_in_force_and_survive_a_restart(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await committed(provider, create(A))
        consistency = within(session(control("reader"), monotonic=True))
        first = await provider.read(read(A, consistency=consistency))

        again = await reopen(provider)

        assert isinstance(first, Reading)
        await reading(again, read(A, consistency=consistency))

    @pytest.mark.requires("monotonic_reads", "read_your_writes")
    async def test_a_session_of_another_scope_is_another_session(self, provider: Provider) -> None:
        """Frontiers of a session belong to one scope, though cursors are shared by all."""
        key = control("shared")
        await committed(provider, create(A_ELSEWHERE, "far", write_sessions=(key,)))

        own = within(session(key, monotonic=True, own_writes=True))

        assert (await reading(provider, read(A, consistency=own))).observation.frontier == 0

    @pytest.mark.requires("monotonic_reads", "read_your_writes")
    async def test_a_session_that_was_never_seen_requires_nothing(self, provider: Provider) -> None:
        own = within(session(control("new"), monotonic=True, own_writes=True))

        await reading(provider, read(A, consistency=own))
        await page_of(provider, retrieve(consistency=own))

    @pytest.mark.requires("monotonic_reads", "read_your_writes")
    async def test_one_key_may_stand_in_several_requirements(self, provider: Provider) -> None:
        key = control("s")
        await committed(provider, create(A, write_sessions=(key, key)))

        own = within(session(key, monotonic=True), session(key, own_writes=True), session(key))

        await reading(provider, read(A, consistency=own))

    @pytest.mark.requires("monotonic_reads")
    async def test_a_late_or_unavailable_read_is_refused_whatever_the_session(
        self, provider: Provider
    ) -> None:
        requirement = session(control("s"), monotonic=True)
        late = Consistency(sessions=(requirement,), deadline_unix_ms=LATE)
        nowhere = Consistency(sessions=(requirement,), allowed_sources=frozenset({Source.REPLICA}))

        with pytest.raises(DeadlineExceededError):
            await provider.read(read(A, consistency=late))
        if not provider.capabilities().replica:
            assert isinstance(await provider.read(read(A, consistency=nowhere)), Unavailable)
        await reading(provider, read(A, consistency=within(requirement)))
