"""The boundary itself: what every store promises, method by method.

The engine holds one provider and keeps nothing between two requests; whatever must survive is in
the provider. A mutation makes at most two calls (`read`, `commit`), a create one, and one more
commit for each race it loses.

What holds for all methods:

* An answer to a mutation means that it is on disk: it survives the end of the process and the loss
  of power.
* Each call is atomic. An outcome of refusal keeps at most the opening or the expiry of the work
  unit that the plan names; `Unavailable`, and every exception but `OutcomeUnknownError`, leaves
  nothing behind, neither versions nor an opened unit nor a moved frontier.
* Creates are accepted in the order in which they were begun, also while earlier ones still wait; so
  are commits of one entity.
* Cancelling a call leaves its whole effect or none, and never swallows the wake-up of waiters.
* A deadline is checked at the start and again as the last step before the store accepts; only
  outcomes that keep something are subject to it, so a lost race is told even when it is late.
* No answer of one scope depends on the data of another, and no cost on the length of history.
* Heads are returned ascending by version id. `*_json` texts come back byte for byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from patchouli.provider.errors import UnsupportedError

if TYPE_CHECKING:
    from patchouli.provider.capabilities import Capabilities
    from patchouli.provider.identity import Cursor, ScopeText
    from patchouli.provider.outcomes import (
        ChangePage,
        CommitOutcome,
        Compaction,
        PublishOutcome,
        ReadOutcome,
        ReferencesPage,
        RetrieveOutcome,
        RuntimeGeneration,
    )
    from patchouli.provider.plans import (
        ChangesPlan,
        Commit,
        CompactionPlan,
        Publish,
        ReadPlan,
        ReferencesPlan,
        Retention,
        RetrievePlan,
    )


class Provider(ABC):
    """A transactional store of versioned entities.

    Order of life: construct (takes ownership of the storage, changes nothing in it), `capabilities`
    at any time, `initialize` once, then everything else, `shutdown` last. All methods may be called
    concurrently from one event loop.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """A short constant name, e.g. `sqlite`."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the constant claims of this provider; works before `initialize`."""

    @abstractmethod
    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        """Start a run: verify or create the storage, expire overdue units, count the generation.

        One atomic step; if it fails the storage is as it was and `shutdown` need not be called.

        Raises:
            FormatVersionError: The storage belongs to another program or a newer release.
            CorruptStoreError: It cannot be read.
        """

    @abstractmethod
    async def health(self) -> None:
        """Return if the store can answer a trivial query."""

    @abstractmethod
    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Return the published heads, or in a work unit the heads of its view, and what was asked.

        The checks of `plan.consistency` come first and in this order: deadline, source, tokens,
        sessions. Heads, frontier, idempotency record and the advance of sessions with monotonic
        reads belong to one snapshot. An unknown entity has no heads. Never returns history: heads,
        named bases and a bounded divergence only.
        """

    @abstractmethod
    async def commit(self, commit: Commit) -> CommitOutcome:
        """Replace the heads of an entity and append one change, or stage it, or say why not.

        The idempotency record is looked up first and stored in the same transaction. Then the heads
        are compared as sets: different ones are `Raced`, whatever the deadline. A staged closing
        commit publishes the whole unit in the same transaction if nothing it mutated has drifted,
        and otherwise seals it.

        Raises:
            DeadlineExceededError: The deadline passed before acceptance; nothing was kept.
            MisuseError: Heads that are neither new nor present, unknown parents, repeated versions,
                a causal token used before, an active version without a value or the reverse.
            StoreFullError: There is no room; nothing was kept.
        """

    @abstractmethod
    async def publish(self, publish: Publish) -> PublishOutcome:
        """Publish a sealed unit with the given resolutions, all of it or nothing, or discard it.

        Accepted only if the drifted entities are exactly those of the resolutions and none of the
        compared head sets has moved; otherwise `Drifted` brings the present state. Entities are
        published in the order: closing entity last, others by type and id.

        Raises:
            DeadlineExceededError: Nothing was published; the unit stays sealed.
            MisuseError: The unit is open, or a resolution names heads that do not exist.
        """

    @abstractmethod
    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        """Return one page of entities by the rules of `patchouli.provider.matching`.

        A value is findable as soon as its commit was answered and no longer once it is superseded
        or deleted. Value, order and observation belong to one snapshot; pages do not.
        """

    @abstractmethod
    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        """Return changes of a scope in order, never with a gap above `pruned_through`."""

    @abstractmethod
    async def wait_for_changes(self, scope: ScopeText, after: Cursor) -> None:
        """Return when the frontier of `scope` is beyond `after`; at once if it already is.

        May return without a reason. A commit between the check and the wait is not missed, and a
        commit of another scope does not wake.

        Raises:
            UnavailableError: The provider stops.
        """

    @abstractmethod
    async def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        """Return what stored versions name at a pointer: heads, superseded and staged ones.

        For the housekeeping of what lies outside the store and is named by values in it. The only
        read across scopes, and no request may cause it. All versions of one entity belong to one
        snapshot; an entity that existed before the first page is in one of the pages.

        Raises:
            MisuseError: The limit is below 1.
        """

    async def compact(self, plan: CompactionPlan) -> Compaction:
        """Remove some of what is past its retention, in one short step that is safe to repeat.

        By the provider's clock and the `Retention` of this run there go: changes recorded too long
        ago, idempotency records that have expired, identities of work units that finished before
        the horizon of history, and versions that a change recorded before that horizon superseded.
        What is gone is as if it had never been: a base is unknown, a unit identity unused. Nothing
        else changes. Heads, causal tokens, session frontiers and cursors stay valid for ever, and
        no cursor is given out twice.

        A version that is past the horizon stays nevertheless while something needs it: a retained
        change that names it as a head, an open or sealed work unit whose baseline or staged
        versions go back to it, or the walk (`patchouli.provider.walk`) between versions that stay.

        A store may remove the same things by itself at any time. One that leaves this to somebody
        else does not implement the method.

        Raises:
            MisuseError: The limit is below 1.
            UnsupportedError: The store does not compact on demand.
        """
        raise UnsupportedError(self.kind, "compact", "it does not compact on demand")

    @abstractmethod
    async def checkpoint(self) -> None:
        """Flush everything into the main storage without stopping service.

        Raises:
            UnavailableError: It could not be completed now.
        """

    @abstractmethod
    async def shutdown(self) -> None:
        """Refuse new calls, finish admitted ones, record a clean stop, release ownership.

        Ownership is released even if an earlier step fails; the first failure is raised at the end.
        A second call does nothing. Every other call fails with `UnavailableError` afterwards.
        """
