"""The provider as requests meet it: its calls, with its deadline errors in the engine's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.backend.answers import late, refused
from patchouli.provider import DeadlineExceededError, Page, Reading

if TYPE_CHECKING:
    from patchouli.provider import (
        Commit,
        CommitOutcome,
        Provider,
        ReadPlan,
        RetrievePlan,
    )


class Access:
    """The calls of one provider that requests make."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def read(self, plan: ReadPlan) -> Reading:
        """Return what `plan` asks for.

        Raises:
            EngineError: It cannot be read, or not in time.
        """
        try:
            outcome = await self._provider.read(plan)
        except DeadlineExceededError as error:
            raise late() from error
        if type(outcome) is Reading:
            return outcome
        raise refused(outcome)

    async def retrieve(self, plan: RetrievePlan) -> Page:
        """Return the page that `plan` asks for.

        Raises:
            EngineError: It cannot be read, or not in time.
        """
        try:
            outcome = await self._provider.retrieve(plan)
        except DeadlineExceededError as error:
            raise late() from error
        if type(outcome) is Page:
            return outcome
        raise refused(outcome)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Return what became of `commit`.

        Raises:
            DeadlineExceededError: It was too late, and nothing was kept.
        """
        try:
            return await self._provider.commit(commit)
        except DeadlineExceededError as error:
            raise late() from error
