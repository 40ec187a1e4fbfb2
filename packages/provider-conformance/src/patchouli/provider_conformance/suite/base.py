"""What an adapter gives to the suite, and what the suite makes of it.

An adapter's test class inherits a class of the suite and gives one fixture, `open_provider`. For
the cases about crashes it gives `abandon` as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import Capabilities, Clock, Provider, Retention
from patchouli.provider_conformance.builders import FOREVER, ManualClock

if TYPE_CHECKING:
    from typing import ClassVar

OpenProvider = Callable[[Clock], Provider]
"""Constructs, and does not initialise, a provider on the one storage of the running test."""

Start = Callable[[], Awaitable[Provider]]
"""Constructs and initialises a provider; the suite stops it at the end of the test."""

Reopen = Callable[[Provider], Awaitable[Provider]]
"""Stops a provider and starts another on the same storage."""

Abandon = Callable[[Provider], Awaitable[None]]
"""Lets go of the storage as the end of the process would: no clean stop is recorded."""

WAIT_SECONDS = 5.0  # the longest that a case waits for an event that must come


class ProviderSuite:
    """The fixtures of all suite classes."""

    pytestmark: ClassVar[list[pytest.MarkDecorator]] = [pytest.mark.anyio]

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop that providers are written for."""
        return "asyncio"

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of every provider that the test opens."""
        return ManualClock()

    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        """How to construct a provider; given by the adapter."""
        raise NotImplementedError("the test class of an adapter gives the fixture `open_provider`")

    @pytest.fixture
    def abandon(self) -> Abandon:
        """How to drop a provider without a clean stop; given by the adapter."""
        pytest.skip("the adapter does not say how to abandon a provider")

    @pytest.fixture
    def retention(self) -> Retention:
        """How long the providers of the test keep what is no longer current."""
        return FOREVER

    @pytest.fixture
    async def start(
        self, open_provider: OpenProvider, clock: ManualClock, retention: Retention
    ) -> AsyncIterator[Start]:
        """How to start a provider that is stopped at the end of the test."""
        async with AsyncExitStack() as stack:

            async def start() -> Provider:
                provider = open_provider(clock)
                stack.push_async_callback(provider.shutdown)
                await provider.initialize(retention)
                return provider

            yield start

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """An initialised provider on empty storage."""
        return await start()

    @pytest.fixture
    def reopen(self, start: Start) -> Reopen:
        """How to restart a provider."""

        async def reopen(provider: Provider) -> Provider:
            await provider.shutdown()
            return await start()

        return reopen

    @pytest.fixture
    def capabilities(self, provider: Provider) -> Capabilities:
        """The claims of the provider."""
        return provider.capabilities()

    @pytest.fixture(autouse=True)
    def _leave_out_what_is_not_claimed(self, request: pytest.FixtureRequest) -> None:
        required = {str(c) for mark in request.node.iter_markers("requires") for c in mark.args}
        if required:
            claims: Capabilities = request.getfixturevalue("capabilities")
            missing = sorted(claim for claim in required if not getattr(claims, claim))
            if missing:
                pytest.skip(f"not offered: {', '.join(missing)}; see RefusalConformance")
