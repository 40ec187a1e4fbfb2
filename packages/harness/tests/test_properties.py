"""Random orders of installing, starting, failing, providing, withdrawing, cancelling and closing.

The plugins of an example form a graph: each needs some services and provides one. Their starts and
undos take a random number of steps of the loop, some fail, some look at their signal. A driver does
random things to them, some while others are still going on. What holds:

- no plugin is ever active without all that it needs (looked at in every step of the loop);
- undos of one plugin run in reverse and never overlap, and a provider undoes nothing while somebody
  who began with its service has not stopped;
- every start is followed by exactly the undos of what it made, before the next one;
- when nothing is in flight, every plugin is where its needs say;
- closing the kernel ends everything, whatever came before, and leaves no task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st
from patchouli.harness import (
    AlreadyProvided,
    Context,
    Effect,
    Kernel,
    PluginScope,
    PluginSpec,
    ScopeState,
    Undo,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = "abcdef"
SILENT = logging.Logger("silent", logging.CRITICAL + 1)  # noqa: LOG001 - of this module alone
SETTLED = (ScopeState.WAITING, ScopeState.ACTIVE, ScopeState.FAILED, ScopeState.CLOSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one plugin behaves."""

    needs: tuple[str, ...]
    provides: str | None
    effects_before: int  # it provides
    start_steps: int
    undo_steps: int
    effects: int
    failing_starts: frozenset[int]
    failing_undo: bool
    heeds_signal: bool
    child_needs: tuple[str, ...] | None
    loops: bool


@dataclass(slots=True)
class World:
    """What happened, and whether it was allowed to."""

    kernel: Kernel
    log: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    undoing: set[int] = field(default_factory=set[int])
    problems: list[str] = field(default_factory=list[str])
    running: dict[int, dict[str, object]] = field(default_factory=dict[int, dict[str, object]])
    starts: dict[int, int] = field(default_factory=dict[int, int])
    plans: dict[PluginScope, Plan] = field(default_factory=dict[PluginScope, Plan])

    def look(self) -> None:
        for scope, plan in self.plans.items():
            if scope.state is ScopeState.ACTIVE and any(
                self.kernel.root.find(name) is None for name in plan.needs
            ):
                self.problems.append(f"{scope.name} is active without {scope.missing}")


class Token:
    """The value of a service, which knows who published it."""

    def __init__(self, owner: int) -> None:
        self.owner = owner


def body(world: World, number: int, plan: Plan) -> Callable[[Context, object], object]:
    log = world.log.setdefault(number, [])

    def effect(ctx: Context, position: int) -> None:
        async def undo() -> None:
            if number in world.undoing:
                world.problems.append(f"undos of {number} overlap")
            for other, bound in world.running.items():
                if other != number and any(
                    isinstance(token, Token) and token.owner == number for token in bound.values()
                ):
                    world.problems.append(f"{number} undoes while {other} still uses it")
            world.undoing.add(number)
            for _ in range(plan.undo_steps):
                await asyncio.sleep(0)
            world.undoing.discard(number)
            log.append(f"-{position}")
            if plan.failing_undo:
                raise ValueError("undo")

        ctx.effect(lambda: undo)
        log.append(f"+{position}")

    async def start(ctx: Context, _: object) -> Undo | None:
        attempt = world.starts[number] = world.starts.get(number, 0) + 1
        log.append("start")
        world.running[number] = {name: ctx.get(name) for name in plan.needs}

        def stopped() -> None:
            world.running.pop(number, None)
            log.append("stop")

        ctx.effect(lambda: stopped)
        for position in range(plan.effects):
            if position == plan.effects_before and plan.provides is not None:
                ctx.provide(plan.provides, Token(number))
            for _ in range(plan.start_steps):
                if plan.heeds_signal:
                    ctx.signal.raise_if_cancelled()
                await asyncio.sleep(0)
            effect(ctx, position)
        if plan.child_needs is not None:
            ctx.when(plan.child_needs, lambda child: child.logger.debug("child") or None)
        if plan.loops:
            ctx.spawn(asyncio.Event().wait(), name="loop")
            ctx.on("event", lambda: asyncio.sleep(0))
        if plan.provides is not None and plan.effects_before >= plan.effects:
            ctx.provide(plan.provides, Token(number))
        if attempt in plan.failing_starts:
            raise ValueError("start")
        return None

    return start


def well_formed(log: list[str]) -> bool:
    """Say whether each start is followed by the undos of what it made, in reverse, then a stop."""
    open_effects: list[str] = []
    is_running = False
    for entry in log:
        match entry[0], entry[1:]:
            case "s", "tart":
                if is_running:
                    return False
                is_running = True
            case "s", "top":
                if open_effects or not is_running:
                    return False
                is_running = False
            case "+", position:
                open_effects.append(position)
            case _, position:
                if not open_effects or open_effects.pop() != position:
                    return False
    return not open_effects and not is_running


plans = st.builds(
    Plan,
    needs=st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple),
    provides=st.none() | st.sampled_from(NAMES),
    effects_before=st.integers(0, 3),
    start_steps=st.integers(0, 3),
    undo_steps=st.integers(0, 3),
    effects=st.integers(0, 3),
    failing_starts=st.frozensets(st.integers(1, 3), max_size=1),
    failing_undo=st.booleans(),
    heeds_signal=st.booleans(),
    child_needs=st.none() | st.lists(st.sampled_from(NAMES), max_size=1).map(tuple),
    loops=st.booleans(),
)
actions = st.one_of(
    st.tuples(st.just("install"), st.integers(0, 100)),
    st.tuples(st.just("install under"), st.integers(0, 100)),
    st.tuples(st.just("provide"), st.sampled_from(range(len(NAMES)))),
    st.tuples(st.just("withdraw"), st.integers(0, 100)),
    st.tuples(st.just("close"), st.integers(0, 100)),
    st.tuples(st.just("cancel a close"), st.integers(0, 100)),
    st.tuples(st.just("notify"), st.just(0)),
    st.tuples(st.just("steps"), st.integers(1, 6)),
    st.tuples(st.just("settle"), st.just(0)),
)


SHOP = Plan(
    needs=(),
    provides="a",
    effects_before=0,
    start_steps=0,
    undo_steps=0,
    effects=2,
    failing_starts=frozenset(),
    failing_undo=False,
    heeds_signal=False,
    child_needs=None,
    loops=False,
)
READER = replace(SHOP, needs=("a",), provides=None, undo_steps=3)


async def play(graph: list[Plan], script: list[tuple[str, int]]) -> None:
    before = asyncio.all_tasks()
    kernel = Kernel(logger=lambda _: SILENT)  # much is logged on purpose
    world = World(kernel)
    effects: list[Effect] = []
    waiting: list[asyncio.Task[None]] = []
    installed: list[PluginScope] = []
    contexts: list[Context] = [kernel.root]

    def install(ctx: Context) -> None:
        number = len(installed)
        plan = graph[number % len(graph)]
        start = body(world, number, plan)

        async def keep_context(inner: Context, config: object) -> object:
            contexts.append(inner)
            return await start(inner, config)  # type: ignore[misc] - a coroutine function

        spec = PluginSpec(name=f"p{number}", start=keep_context, needs=plan.needs)  # type: ignore[arg-type] - returns None
        scope = ctx.plugin(spec)
        installed.append(scope)
        world.plans[scope] = plan

    for action, argument in script:
        world.look()
        match action:
            case "install":
                install(kernel.root)
            case "install under":
                ctx = contexts[argument % len(contexts)]
                if not ctx.signal.cancelled:
                    install(ctx)
            case "provide":
                with contextlib.suppress(AlreadyProvided):
                    effects.append(kernel.root.provide(NAMES[argument], Token(-1)))
            case "withdraw" if effects:
                effect = effects.pop(argument % len(effects))
                waiting.append(asyncio.create_task(effect.dispose()))
            case "close" if installed:
                scope = installed[argument % len(installed)]
                waiting.append(asyncio.create_task(scope.close()))
            case "cancel a close" if waiting:
                waiting[argument % len(waiting)].cancel()
            case "notify":
                kernel.root.notify("event")
            case "settle":
                await kernel.settle()
                check_settled(world)
            case _:
                for _ in range(argument):
                    await asyncio.sleep(0)
                    world.look()
        world.look()
    await asyncio.gather(*waiting, return_exceptions=True)
    await kernel.settle()
    check_settled(world)
    await kernel.aclose()

    assert world.problems == []
    assert {scope.state for scope in installed} <= {ScopeState.CLOSED}
    assert [log for log in world.log.values() if not well_formed(log)] == []
    assert world.running == {}
    assert kernel.pending() == []
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def check_settled(world: World) -> None:
    for scope, plan in world.plans.items():
        assert scope.state in SETTLED
        is_met = all(world.kernel.root.find(name) is not None for name in plan.needs)
        if scope.state is ScopeState.WAITING:
            assert not is_met
        elif scope.state is ScopeState.ACTIVE:
            assert is_met


@example([SHOP, READER], [("install", 0), ("install", 0), ("settle", 0), ("close", 0)])
@settings(max_examples=150, deadline=None)
@given(st.lists(plans, min_size=1, max_size=5), st.lists(actions, max_size=25))
def test_any_order_of_events_keeps_the_promises(
    graph: list[Plan], script: list[tuple[str, int]]
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):  # a deadlock fails instead of hanging
            await play(graph, script)

    asyncio.run(bounded())


@settings(max_examples=60, deadline=None)
@given(st.lists(plans, min_size=1, max_size=5), st.integers(0, 40))
def test_a_kernel_can_be_closed_at_any_step(graph: list[Plan], steps: int) -> None:
    script = [("install", 0)] * len(graph) + [("provide", i) for i in range(3)]

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await play(graph, [*script, ("steps", steps)] if steps else script)

    asyncio.run(bounded())


def test_the_log_check_can_fail() -> None:
    assert well_formed(["start", "+0", "+1", "-1", "-0", "stop", "start", "stop"])
    for wrong in (
        ["start"],
        ["start", "start"],
        ["start", "+0", "stop"],
        ["start", "+0", "+1", "-0", "-1", "stop"],
        ["start", "stop", "-0"],
    ):
        assert not well_formed(wrong)
