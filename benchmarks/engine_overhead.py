"""What the engine costs per request, without store and socket.

Run it by `python -m benchmarks.engine_overhead`.

A provider that answers at once stands behind the engine, so that what is timed is selection,
validation, canonical text, plans and answers. The best of many short rounds is printed, because
other work on the machine only ever adds.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from patchouli.backend import (
    Engine,
    Selector,
    ValueValidators,
    canonical,
    load_policy,
    read_resource,
)
from patchouli.protocol import (
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    ReadData,
    ReadParams,
    Ref,
    RetrieveData,
    RetrieveParams,
    UpdateData,
    UpdateParams,
)
from patchouli.provider import (
    Capabilities,
    CausalToken,
    ChangePage,
    Committed,
    Cursor,
    Discarded,
    Observation,
    Page,
    Provider,
    Reading,
    RuntimeGeneration,
    Source,
    SystemClock,
    SystemIds,
    Version,
    VersionId,
    VersionState,
)

from benchmarks.values import SCOPE, value_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.provider import (
        ChangesPlan,
        Commit,
        Publish,
        ReadPlan,
        ReferencesPage,
        ReferencesPlan,
        Retention,
        RetrievePlan,
    )

ROUNDS, PER_ROUND = 300, 200
VALUE = value_of(1)
HEAD = Version(
    id=VersionId("v"),
    state=VersionState.ACTIVE,
    value_json=canonical(VALUE),
    parents=(),
    recorded_at_unix_ms=1,
)
OBSERVATION = Observation(
    source=Source.AUTHORITY, frontier=Cursor(1), causal_token=CausalToken("v")
)


class Prompt(Provider):
    """Answers at once, always the same."""

    kind = "prompt"

    def capabilities(self) -> Capabilities:
        return Capabilities(
            authority=True,
            change_stream=True,
            retrieval=True,
            work_units=True,
            linearizable_reads=True,
        )

    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        return RuntimeGeneration(
            generation=1, recovered_after_unclean_shutdown=False, incarnation="i", secret=b"s" * 32
        )

    async def health(self) -> None:
        pass

    async def read(self, plan: ReadPlan) -> Reading:
        return READING

    async def commit(self, commit: Commit) -> Committed:
        return COMMITTED

    async def publish(self, publish: Publish) -> Discarded:
        return Discarded()

    async def retrieve(self, plan: RetrievePlan) -> Page:
        return PAGE

    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        raise NotImplementedError

    async def wait_for_changes(self, scope: str, after: int) -> None:
        raise NotImplementedError

    async def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        raise NotImplementedError

    async def checkpoint(self) -> None:
        pass

    async def shutdown(self) -> None:
        pass


READING = Reading(heads=(HEAD,), observation=OBSERVATION, bases=(HEAD,))
COMMITTED = Committed(cursor=Cursor(2))
PAGE = Page(hits=(), has_more=False, observation=OBSERVATION)


def timed(call: Callable[[], object]) -> float:
    """Return the microseconds of one call in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(PER_ROUND):
            call()
        best = min(best, time.perf_counter() - start)
    return best / PER_ROUND * 1e6


async def awaited(call: Callable[[], Awaitable[object]]) -> float:
    """Return the microseconds of one awaited call in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(PER_ROUND):
            await call()
        best = min(best, time.perf_counter() - start)
    return best / PER_ROUND * 1e6


async def main() -> None:
    loaded = load_policy(read_resource("patchouli.default.json"))
    engine = await Engine.start(loaded, Prompt(), clock=SystemClock(), ids=SystemIds())
    selector, validators = Selector(loaded.policy), ValueValidators(loaded.policy)
    meta, ref = dict(SCOPE), Ref(type="knowledge", id="k")
    based = {**meta, "base_versions": ["v"]}
    create = CreateParams(meta=meta, data=CreateData(type="knowledge", id="k", value=VALUE))
    read = ReadParams(meta=meta, data=ReadData(ref=ref))
    update = UpdateParams(meta=based, data=UpdateData(ref=ref, value=VALUE))
    delete = DeleteParams(meta=based, data=DeleteData(ref=ref))
    retrieve = RetrieveParams(meta=meta, data=RetrieveData(query='{"text":"fern"}'))

    print("microseconds per call, best of", ROUNDS, "rounds")
    print(f"  selection        {timed(lambda: selector.select('knowledge', meta)):6.1f}")
    print(f"  validation       {timed(lambda: validators.require_valid('knowledge', VALUE)):6.1f}")
    print(f"  canonical text   {timed(lambda: canonical(VALUE)):6.1f}")
    print(f"  create           {await awaited(lambda: engine.create(create)):6.1f}")
    print(f"  read             {await awaited(lambda: engine.read(read)):6.1f}")
    print(f"  update           {await awaited(lambda: engine.update(update)):6.1f}")
    print(f"  delete           {await awaited(lambda: engine.delete(delete)):6.1f}")
    print(f"  retrieve         {await awaited(lambda: engine.retrieve(retrieve)):6.1f}")
    await engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
