"""The face of the kernel: what a plugin states about itself, and what it is given to work with.

Everything here is a type; `patchouli.harness.kernel` makes the things. A *scope* is one installed
plugin; it starts and stops as the services it needs come and go. The *context* belongs to one run
of it, from a start to the stop that follows, and whatever the plugin makes through it ends with
that run: effects, listeners, tasks, services, child plugins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator

    from patchouli.harness.signals import CancelSignal

# Of the undo of an effect, of the handlers of a stop, of a start that was told to stop.
STOP_LIMIT_MS: Final = 30_000

C = TypeVar("C")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

Undo: TypeAlias = Callable[[], Awaitable[object] | object]
EffectBody: TypeAlias = Undo | Awaitable[Undo]
# Any: events are typed by their payloads (`patchouli.harness.events`), not by the dispatcher.
Listener: TypeAlias = Callable[..., Any]
StartFn: TypeAlias = "Callable[[Context], Awaitable[Undo | None] | Undo | None]"


class ScopeState(StrEnum):
    """Where a scope is between being installed and being closed."""

    WAITING = "waiting"
    STARTING = "starting"
    ACTIVE = "active"
    FAILED = "failed"
    STOPPING = "stopping"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSpec(Generic[C]):
    """A plugin: what it needs and what it does when all of that is there.

    Attributes:
        name: Names its logger and stands in messages about it.
        start: The body. What it returns, if anything, is the last effect of the run.
        needs: Services that must be there; the body runs only while they all are.
        config: Makes the configuration of the body from the raw one, at every start; what it
            raises is the error of the start.

    Raises:
        TypeError: `needs` is one text, or holds something else than names; it would never be met.
            Or `start` or `config` cannot be called.
    """

    name: str
    start: Callable[[Context, C], Awaitable[Undo | None] | Undo | None]
    needs: tuple[str, ...] = ()
    config: Callable[[Any], C] | None = None  # Any: raw configuration is whatever the host read

    def __post_init__(self) -> None:
        require_names(self.needs)
        require_callable(self.start, "a start")
        if self.config is not None:
            require_callable(self.config, "what makes a configuration")


def require_names(needs: Sequence[str]) -> None:
    """Return when `needs` can be met: a sequence of names, and not one text.

    Raises:
        TypeError: It is something else; the message says what to write.
    """
    if isinstance(needs, str):
        raise TypeError(f"needs are a sequence of names: write ({needs!r},) with a comma")
    for name in needs:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise TypeError(f"a need is the name of a service, not {name!r}")


def require_callable(value: object, what: str) -> None:
    """Return when `value` can be called.

    Raises:
        TypeError: It cannot; the message says `what` it was to be.
    """
    if not callable(value):
        raise TypeError(f"{what} must be callable, not {value!r:.80}")


class Logger(Protocol):
    """Logs lines whose arguments are put in only when they are wanted; no payload at info or above.

    `logging.Logger` is one.
    """

    def debug(self, msg: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log what helps to follow a single operation, with the traceback of `exc_info`."""
        ...

    def info(self, msg: str, *args: object) -> None:
        """Log a change of state."""
        ...

    def warning(self, msg: str, *args: object) -> None:
        """Log what was worked around."""
        ...

    def error(self, msg: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log what failed, with the traceback of `exc_info`."""
        ...


class Effect(Protocol):
    """A handle on something made, which can be unmade before its scope ends."""

    async def dispose(self) -> None:
        """Undo it, once; every call returns when that one undo has ended.

        Raises:
            RuntimeError: The undo itself calls this.
        """
        ...


class PluginScope(Awaitable["PluginScope"], Protocol):
    """One installed plugin.

    Awaiting it waits until nothing is in flight and returns the scope; if its start failed, the
    error of the start is raised. A scope that waits for a service has settled.
    """

    @property
    def name(self) -> str:
        """The name of the plugin, or of the nearest one above if this one has none."""
        ...

    @property
    def state(self) -> ScopeState:
        """Where it is now."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What the last start raised, while the scope is failed; else None."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """The needs that are not met now, in the order in which they were declared."""
        ...

    async def close(self) -> None:
        """Stop the plugin for good; every call returns when that one stop has ended.

        Raises:
            RuntimeError: A task or a handler of the scope itself calls this; it could never end.
        """
        ...

    def __await__(self) -> Generator[Any, None, PluginScope]:  # Any: what an event loop yields
        """Wait until nothing is in flight."""
        ...


class Bindable(Protocol[T_co]):
    """A service whose methods make lasting things for their callers."""

    def for_context(self, ctx: Context) -> T_co:
        """Return the service as the plugin of `ctx` shall see it: what it makes belongs to `ctx`.

        Called at every `get` and `find`, so it should be cheap; it shares the service's state.
        """
        ...


class Context(Protocol):
    """What one run of a plugin works through. Once the run stops, it takes no new effects."""

    @property
    def logger(self) -> Logger:
        """The logger named after the nearest named plugin."""
        ...

    @property
    def signal(self) -> CancelSignal:
        """The signal that fires when this run begins to stop."""
        ...

    def plugin(
        self, spec: PluginSpec[Any], config: Any = None
    ) -> PluginScope:  # Any: as in PluginSpec
        """Install a child plugin; it starts in a later step of the loop, never here.

        Raises:
            ScopeClosed: This run stops or has stopped.
        """
        ...

    def when(self, needs: Sequence[str], body: StartFn, name: str = "") -> PluginScope:
        """Run `body` as a child for as long as all of `needs` are there, while this run goes on.

        Raises:
            TypeError: `needs` is one text, or holds something else than names, or `body` cannot be
                called.
            ScopeClosed: This run stops or has stopped.
        """
        ...

    def provide(self, name: str, value: object) -> Effect:
        """Publish `value` as the service `name`; others see it once this scope is active.

        Disposing of it returns when every plugin that needed it has stopped.

        Raises:
            AlreadyProvided: The name has a provider.
            ScopeClosed: This run stops or has stopped.
        """
        ...

    def get(self, name: str) -> Any:  # Any: what a service is, only its name tells
        """Return a service that this scope or one above it needs or provides.

        Raises:
            ServiceUnavailable: It is missing now, or nobody declared the need.
        """
        ...

    def find(self, name: str) -> Any | None:
        """Return a service if its provider is active, needed or not; else None."""
        ...

    def effect(
        self,
        enter: Callable[[], EffectBody],
        label: str = "",
        *,
        undo_limit_ms: int = STOP_LIMIT_MS,
    ) -> Effect:
        """Run `enter` now and record the undo that it returns.

        If `enter` returns an awaitable of the undo, it is awaited beside the caller; a start ends
        only when those made during it have ended, and fails with the first that failed. Any other
        failure is logged, and such an effect has nothing to undo.

        Args:
            enter: Makes something and returns how to unmake it.
            label: Names the effect in the log.
            undo_limit_ms: How long the undo may take before it is abandoned.

        Raises:
            TypeError: `enter`, or the undo that it returned, cannot be called.
            ScopeClosed: This run stops or has stopped; `enter` was not called.
        """
        ...

    def spawn(
        self, coro: Coroutine[Any, Any, R], *, name: str
    ) -> asyncio.Task[R]:  # Any: as in asyncio
        """Run a loop that may be cut anywhere, until it ends or this run stops.

        An error that nobody awaits is logged and stops nothing else.

        Raises:
            ScopeClosed: This run stops or has stopped; `coro` was closed.
        """
        ...

    def on(self, event: str, listener: Listener, *, prepend: bool = False) -> Effect:
        """Have `listener` called for `event`, after the others or, prepended, before them.

        Raises:
            TypeError: `listener` cannot be called.
            ScopeClosed: This run stops or has stopped.
        """
        ...

    def notify(self, event: str, *args: object) -> None:
        """Call every listener and wait for none; a failure is logged and keeps no other from it.

        What a listener leaves to be awaited becomes a task of the listener's scope. Only
        `KeyboardInterrupt` and `SystemExit` are raised, after the last listener.
        """
        ...

    def announce(self, event: str, *args: object) -> None:
        """Do as `notify` does, but what a listener raises at once stops the rest and propagates."""
        ...

    async def gather(self, event: str, *args: object) -> None:
        """Start every listener and return when all have ended; then raise the first failure.

        First is meant in the order of the listeners. They run in the caller's context.
        """
        ...

    async def serial(self, event: str, *args: object) -> Any:  # Any: events say what is returned
        """Await the listeners one by one until one returns neither None nor False; return that."""
        ...

    async def chain(self, event: str, *args: object, default: Callable[[], Any]) -> Any:
        """Nest the listeners around `default` and return what the outermost one returns.

        Each is called with the arguments and `next`, a function without arguments that runs the
        rest once and returns an awaitable of its result.
        """
        ...
