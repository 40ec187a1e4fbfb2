"""From settings to a running daemon, and back in order.

Steps, each undone by the ones that fail after it: configuration; claim of the endpoint; store;
engine (which starts the store's run); artifact library; listening. A failed start leaves the store
recorded as cleanly stopped, or untouched if it never ran. At the end the library is let go of after
the store, since whoever waits for either then finds both free.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from patchouli.backend import (
    ArtifactLibrary,
    ArtifactLimits,
    ArtifactService,
    CareSchedule,
    Caretaker,
    Checked,
    Collected,
    Engine,
    EngineError,
    load_policy,
    load_providers,
)
from patchouli.backend import Limits as EngineLimits
from patchouli.provider import ProviderError, SystemClock, SystemIds
from patchouli.provider_sqlite import IndexLimits, SqliteLimits, SqliteProvider
from patchouli.server.home import create_home, database_path, make_home, remote_provider_in_use
from patchouli.server.lifecycle import Daemon, Stop
from patchouli.server.listener import UnixEndpoint
from patchouli.server.logs import Log
from patchouli.server.pipes import PipeEndpoint
from patchouli.server.settings import IS_WINDOWS, CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from patchouli.backend import LoadedPolicy, LoadedProviders
    from patchouli.provider import Provider
    from patchouli.server.settings import Limits, Settings

READY: Final = "Patchouli daemon listening on {}"

# The collector looks at new containers once there are this many, about 10 MB; a request line has
# 350,000 at most.
YOUNG_CONTAINERS: Final = 100_000
OLDER_AFTER: Final = 10  # such looks it takes those in that survived one,
OLDEST_AFTER: Final = 10  # and after as many of these all


async def serve_daemon(settings: Settings, log: Log) -> None:
    """Run a daemon from start to end as the purpose of this process.

    Raises:
        CommandError: It did not start, or did not end cleanly.
        ConfigurationError: A document prevents the start.
        ProviderError: The store prevents the start, or did not stop cleanly.
    """
    os.umask(0o077)
    stop = Stop()
    stop.listen_to_signals()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: log.error(
            "loop.failed", error=context.get("exception"), place=context["message"]
        )
    )
    async with open_daemon(settings, stop=stop, log=log) as daemon:
        _settle()
        await daemon.serve(lambda: _say(READY.format(settings.endpoint)))


@asynccontextmanager
async def open_daemon(settings: Settings, *, stop: Stop, log: Log) -> AsyncGenerator[Daemon]:
    """Yield a daemon that is ready to `serve`; afterwards end it and close all it stands on.

    Raises:
        As `serve_daemon`.
    """
    policy, providers = _configuration(settings)
    endpoint = (PipeEndpoint if IS_WINDOWS else UnixEndpoint)(settings.endpoint, log)
    async with AsyncExitStack() as cleanup:
        endpoint.claim()
        cleanup.callback(endpoint.release)
        cleanup.callback(endpoint.close)
        after_store = cleanup.enter_context(ExitStack())
        clock, ids = SystemClock(), SystemIds()
        store = _open_store(providers, settings)
        engine = await Engine.start(
            policy, store, clock=clock, ids=ids, limits=engine_limits(settings.limits)
        )
        cleanup.push_async_callback(engine.shutdown)
        for warning in [*map(str, providers.warnings), *engine.warnings]:
            _say(f"warning: {warning}")
        if any(engine.recovery):
            published, discarded = engine.recovery
            log.info("units.finished", published=published, discarded=discarded)
        library = _open_library(settings.artifacts)
        after_store.callback(library.close)
        for name in library.foreign_entries:
            _say(f"warning: {settings.artifacts}/uploads: {name!r} is no upload; it was left alone")
        artifacts = ArtifactService(
            library,
            engine,
            node_id=settings.node_id,
            limits=artifact_limits(settings.limits),
            clock=clock,
            ids=ids,
        )
        cleanup.push_async_callback(artifacts.aclose)
        artifacts.start()
        caretaker = Caretaker(
            library,
            store.read_references,
            incarnation=engine.runtime.incarnation,
            schedule=care_schedule(settings.limits),
            clock=clock,
            tell=lambda result: log_care(log, result),
        )
        cleanup.push_async_callback(caretaker.aclose)
        caretaker.start()
        daemon = Daemon(
            settings,
            engine=engine,
            artifacts=artifacts,
            endpoint=endpoint,
            stop=stop,
            clock=clock,
            log=log,
        )
        cleanup.push_async_callback(daemon.end)
        yield daemon


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of uvloop, or where there is none that of the standard library."""
    try:
        import uvloop  # noqa: PLC0415 -- does not exist on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _configuration(settings: Settings) -> tuple[LoadedPolicy, LoadedProviders]:
    """Return the configuration: of the named files, else of the home, which is made if need be."""
    home = settings.home
    # Compared by place: a client that starts a daemon names the files of the home one by one.
    is_of_home = (
        settings.config == home / "config.json",
        settings.providers == home / "providers.json",
    )
    if all(is_of_home):
        return create_home(home)
    if any(is_of_home):
        make_home(home)
    policy = load_policy(settings.config)
    return policy, load_providers(settings.providers, policy.policy)


def engine_limits(limits: Limits) -> EngineLimits:
    """Return the bounds that the engine keeps."""
    return EngineLimits(
        max_queued=limits.max_mutations,
        max_awaiting=limits.max_awaiting,
        max_ids=limits.max_query_ids,
        max_conditions=limits.max_query_conditions,
        max_page_bytes=limits.max_page_bytes,
        max_window_events=limits.max_window_events,
        max_window_bytes=limits.max_window_bytes,
        max_windows_bytes=limits.max_windows_bytes,
        max_joins=limits.max_joins,
    )


def artifact_limits(limits: Limits) -> ArtifactLimits:
    """Return the bounds that the artifact service keeps."""
    return ArtifactLimits(
        artifact_bytes=limits.max_artifact_bytes,
        uploads=limits.max_uploads,
        uploads_per_connection=limits.max_uploads_per_connection,
        upload_bytes=limits.max_upload_bytes,
        idle_seconds=limits.upload_idle_seconds,
        result_seconds=limits.upload_result_seconds,
        results=limits.max_upload_results,
    )


def care_schedule(limits: Limits) -> CareSchedule:
    """Return when the artifact library is looked after."""
    return CareSchedule(
        grace_seconds=limits.artifact_grace_seconds,
        collect_seconds=limits.artifact_collect_seconds,
        check_seconds=limits.artifact_check_seconds,
    )


def log_care(log: Log, result: Collected | Checked | Exception) -> None:
    """Log what the care of the artifact library did or found, if it is worth a line."""
    match result:
        case Collected(removed=removed, removed_bytes=removed_bytes):
            if removed:
                log.info("artifacts.collected", objects=removed, bytes=removed_bytes)
        case Checked(damaged=damaged):
            if damaged:
                log.error("artifacts.damaged", objects=len(damaged))
        case _:
            is_known = isinstance(result, EngineError | ProviderError)
            log.error(
                "artifacts.care_failed",
                error=None if is_known else result,
                reason=type(result).__name__,
            )


def store_limits(limits: Limits) -> SqliteLimits:
    """Return the bounds that the store keeps."""
    return SqliteLimits(
        waiting_commits=limits.max_waiting_commits, waiting_reads=limits.max_waiting_reads
    )


def index_limits(limits: Limits) -> IndexLimits:
    """Return the bounds that the search index keeps."""
    return IndexLimits(tail_changes=limits.max_unindexed_changes)


def _open_store(loaded: LoadedProviders, settings: Settings) -> Provider:
    remote = remote_provider_in_use(loaded)
    if remote is not None:
        raise CommandError(
            f"{settings.providers} routes scopes to the remote provider {remote}, and this "
            'release keeps every scope in the local one; route them to "local"'
        )
    database = database_path(loaded, settings.providers)
    return SqliteProvider(
        database,
        limits=store_limits(settings.limits),
        index_limits=index_limits(settings.limits),
    )


def _open_library(root: Path) -> ArtifactLibrary:
    try:
        return ArtifactLibrary(root)
    except OSError as error:
        raise CommandError(
            f"cannot keep artifacts in {root}: {(error.strerror or 'no access').lower()}; name "
            "another directory with --artifacts"
        ) from error


def _settle() -> None:
    """Keep the collector from walking what it cannot free; until now it is best kept off.

    Modules, schemas and statements live as long as the daemon. Frozen, they are not walked again
    by each full collection. No collection comes before: it takes 19 ms, a fifteenth of a start, and
    finds a thousand small objects. What requests bring are trees, which go without it; at the usual
    threshold it would walk those under construction hundreds of times: a line of 300,000 empty
    lists took six times as long to parse, and all of it holds the loop.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_CONTAINERS, OLDER_AFTER, OLDEST_AFTER)
    gc.enable()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
