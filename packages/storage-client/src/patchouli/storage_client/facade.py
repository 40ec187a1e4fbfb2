"""The client without `async`, for scripts and notebooks.

One thread runs an event loop with a `StorageClient` in it; every method has its work done there and
waits. Handlers of changes run in that thread, so they must not call the façade: it would wait for
itself. A call that is interrupted is forgotten; the others, and the connection, go on.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar, cast

from patchouli.storage_client.artifacts import Download, Upload
from patchouli.storage_client.client import StorageClient
from patchouli.storage_client.connection import RECEIVE_LIMIT_BYTES
from patchouli.storage_client.errors import (
    CalledFromHandlerError,
    DaemonUnavailable,
    not_ready,
)
from patchouli.storage_client.recipes import next_instruction, work_unit_metas
from patchouli.storage_client.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from patchouli.protocol import JsonObject
    from patchouli.storage_client.artifacts import Bytes
    from patchouli.storage_client.configuration import ClientConfig
    from patchouli.storage_client.handshake import ServerInfo
    from patchouli.storage_client.link import State
    from patchouli.storage_client.shapes import (
        AcceptedResult,
        CheckpointResult,
        CompactResult,
        DeletedResult,
        DownloadChunkResult,
        Page,
        Params,
        ReadResult,
        StatusResult,
        UnsubscribeResult,
        UploadBegunResult,
        UploadChunkResult,
    )
    from patchouli.storage_client.subscriptions import (
        BoundaryHandler,
        ChangeClose,
        ChangeHandler,
        ChangeSubscription,
    )

T = TypeVar("T")


class SyncChangeSubscription:
    """A subscription that was accepted; `meta` and `data` are the answer to the subscribe."""

    def __init__(self, subscription: ChangeSubscription, facade: SyncStorageClient) -> None:
        self.meta: Final = subscription.meta
        self.data: Final = subscription.data
        self.subscription_id: Final = subscription.subscription_id
        self._subscription: Final = subscription
        self._facade: Final = facade
        self._closed: Final[Future[ChangeClose]] = Future()
        subscription.when_closed(self._closed.set_result)

    @property
    def closed_with(self) -> ChangeClose | None:
        """Why the subscription has ended, or None while it has not."""
        return self._closed.result() if self._closed.done() else None

    def wait_closed(self, timeout_seconds: float | None = None) -> ChangeClose:
        """Return why the subscription has ended, as soon as it has.

        Raises:
            TimeoutError: It has not ended in that time.
            CalledFromHandlerError: A handler has called this.
            DaemonUnavailable: This process is not the one that has subscribed, or it is ending.
        """
        self._facade.require_usable()
        return self._closed.result(timeout_seconds)

    def unsubscribe(self) -> None:
        """End the subscription; a later call does nothing.

        Raises:
            As `ChangeSubscription.unsubscribe`.
        """
        self._facade.require_usable()
        if not self._closed.done():
            self._facade.run(lambda _: self._subscription.unsubscribe())


class SyncStorageClient:
    """A `StorageClient` whose methods wait; results and errors are the same.

    As a context manager it is started on entry and closed on exit. Threads may share it, processes
    may not: what is forked from a process with a started client needs a client of its own.
    """

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        receive_limit_bytes: int = RECEIVE_LIMIT_BYTES,
    ) -> None:
        """Prepare a closed client; `receive_limit_bytes` bounds a line of the daemon."""
        self._client: Final = StorageClient(config, receive_limit_bytes=receive_limit_bytes)
        self._changing: Final = threading.RLock()
        self._worker: Worker | None = None

    @property
    def config(self) -> ClientConfig:
        """The settings."""
        return self._client.config

    @property
    def state(self) -> State:
        """Where the client is between closed and ready."""
        return self._client.state

    @property
    def server(self) -> ServerInfo | None:
        """What the handshake has settled, None while the client is not connected."""
        return self._client.server

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Be connected; see `StorageClient.start`.

        Threads at the same time share one attempt. If it fails no thread is left, unless the client
        was connected before and is lost: then its thread stays until `close`.
        """
        self.require_usable()
        caller = object()
        try:
            worker = self._worker_of(caller)
            worker.run(StorageClient.start)
            worker.is_started = True
        finally:
            self._leave(caller)

    def close(self) -> None:
        """Be closed, and have no thread any more; a start under way fails.

        Closing again does nothing, nor does closing in a process that was forked from the one with
        the thread, or at the end of the interpreter.
        """
        worker = self._worker
        if worker is not None and not self._is_deserted(worker):
            self._require_other_thread(worker)
            worker.end()

    def status(self) -> StatusResult:
        """Return how the daemon is."""
        return self.run(StorageClient.status)

    def checkpoint(self) -> CheckpointResult:
        """Have the daemon fold the log of its store into the database."""
        return self.run(StorageClient.checkpoint)

    def compact(self, *, limit: int | None = None, with_due: bool = False) -> CompactResult:
        """Have the daemon remove some of what is past its retention."""
        return self.run(lambda client: client.compact(limit=limit, with_due=with_due))

    def create(self, params: Params) -> AcceptedResult:
        """Create an entity."""
        return self.run(lambda client: client.create(params))

    def read(self, params: Params) -> ReadResult:
        """Return all heads of an entity."""
        return self.run(lambda client: client.read(params))

    def retrieve(self, params: Params) -> Page:
        """Return a page of entities."""
        return self.run(lambda client: client.retrieve(params))

    def update(self, params: Params) -> AcceptedResult:
        """Replace a value."""
        return self.run(lambda client: client.update(params))

    def delete(self, params: Params) -> DeletedResult:
        """Delete an entity."""
        return self.run(lambda client: client.delete(params))

    def begin_artifact_upload(self, params: Params) -> UploadBegunResult:
        """Open an upload."""
        return self.run(lambda client: client.begin_artifact_upload(params))

    def upload_artifact_chunk(self, params: Params) -> UploadChunkResult:
        """Send some bytes of an upload."""
        return self.run(lambda client: client.upload_artifact_chunk(params))

    def commit_artifact_upload(self, params: Params) -> AcceptedResult:
        """Make an upload an entity."""
        return self.run(lambda client: client.commit_artifact_upload(params))

    def download_artifact_chunk(self, params: Params) -> DownloadChunkResult:
        """Return some bytes of an artifact."""
        return self.run(lambda client: client.download_artifact_chunk(params))

    def subscribe(
        self,
        params: Params,
        handler: ChangeHandler,
        on_boundary: BoundaryHandler | None = None,
    ) -> SyncChangeSubscription:
        """Have `handler` called, in the thread of the façade, with each change of a scope."""

        async def opened(client: StorageClient) -> SyncChangeSubscription:
            return SyncChangeSubscription(
                await client.subscribe(params, handler, on_boundary), self
            )

        return self.run(opened)

    def unsubscribe(self, params: Params) -> UnsubscribeResult:
        """End a subscription."""
        return self.run(lambda client: client.unsubscribe(params))

    def query(
        self,
        meta: Mapping[str, object],
        instruction: Mapping[str, object],
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Page:
        """Return a page of what fits `instruction`."""
        return self.run(lambda client: client.query(meta, instruction, types=types, limit=limit))

    def query_pages(
        self,
        meta: Mapping[str, object],
        instruction: Mapping[str, object],
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Page]:
        """Yield page after page."""
        following: Mapping[str, object] | None = instruction
        while following is not None:
            page = self.query(meta, following, types=types, limit=limit)
            yield page
            following = next_instruction(instruction, page)

    def retrieve_by_ids(
        self,
        meta: Mapping[str, object],
        ids: Sequence[str],
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Page:
        """Return a page of the entities with these ids."""
        return self.run(lambda client: client.retrieve_by_ids(meta, ids, types=types, limit=limit))

    def upload_artifact(self, params: Params, data: Bytes | Iterable[Bytes]) -> AcceptedResult:
        """Upload bytes, or pieces of any size, as an artifact.

        The pieces are taken from `data` in the thread of the caller.
        """
        if isinstance(data, bytes | bytearray | memoryview):
            whole = cast("Bytes", data)
            return self.run(lambda client: client.upload_artifact(params, whole))
        upload = Upload(params, self.begin_artifact_upload(params))
        for piece in data:
            self._send(upload.chunks(piece), upload)
        self._send(upload.rest(), upload)
        return self.commit_artifact_upload(upload.commit)

    def download_artifact(
        self,
        meta: Mapping[str, object],
        id: str,  # noqa: A002 -- the word of the wire
        version: str | None = None,
    ) -> bytes:
        """Return the bytes of an artifact, all of one version."""
        return self.run(lambda client: client.download_artifact(meta, id, version))

    def download_artifact_pieces(
        self,
        meta: Mapping[str, object],
        id: str,  # noqa: A002 -- the word of the wire
        version: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of an artifact, all of one version, a chunk at a time."""
        download = Download(meta, id, version=version, chunk_bytes=self._client.chunk_bytes)
        while not download.is_complete:
            yield download.advance(self.download_artifact_chunk(download.request()))

    def run_work_unit(
        self,
        meta: Mapping[str, object],
        close_meta: Mapping[str, object],
        mutations: Sequence[Callable[[JsonObject], T]],
    ) -> tuple[T, ...]:
        """Run mutations one after another, each with its metadata, and return their results."""
        metas = work_unit_metas(meta, close_meta, count=len(mutations))
        return tuple([mutate(fresh) for mutate, fresh in zip(mutations, metas, strict=True)])

    def upsert(
        self,
        meta: Mapping[str, object],
        ref: Mapping[str, object],
        value: object,
        *,
        base_versions_key: str = "base_versions",
        conflict_strategy_key: str = "conflict_strategy",
    ) -> AcceptedResult:
        """Let `value` be the one active version of `ref`, whatever was there before."""
        return self.run(
            lambda client: client.upsert(
                meta,
                ref,
                value,
                base_versions_key=base_versions_key,
                conflict_strategy_key=conflict_strategy_key,
            )
        )

    def remove(
        self,
        meta: Mapping[str, object],
        ref: Mapping[str, object],
        *,
        base_versions_key: str = "base_versions",
        conflict_strategy_key: str = "conflict_strategy",
    ) -> DeletedResult | None:
        """Let `ref` be deleted, whatever was there before; None if it was so or never existed."""
        return self.run(
            lambda client: client.remove(
                meta,
                ref,
                base_versions_key=base_versions_key,
                conflict_strategy_key=conflict_strategy_key,
            )
        )

    def require_usable(self) -> None:
        """Return if a call can be made here and would come to an end.

        Raises:
            CalledFromHandlerError: This is the thread of the façade, as it is in a handler.
            DaemonUnavailable: The thread is not there any more: this process was forked from the
                one that has it, or is ending.
        """
        worker = self._worker
        if worker is not None:
            self._require_other_thread(worker)
        if sys.is_finalizing():
            raise DaemonUnavailable(self.config.endpoint, "the interpreter is ending")
        if worker is not None and self._is_deserted(worker):
            raise DaemonUnavailable(
                self.config.endpoint,
                "the client belongs to the process that this one was forked from; make another one",
            )

    def run(self, work: Callable[[StorageClient], Awaitable[T]]) -> T:
        """Return what comes of the coroutine, or another awaitable, that `work` makes.

        For what the façade has no method for, such as several calls at a time. Both `work` and what
        it returns run in the thread of the façade; whatever they raise is raised here.

        Raises:
            DaemonUnavailable: The façade is closed.
            CalledFromHandlerError: A handler has called this.
            TypeError: `work` returned something else.
        """
        self.require_usable()
        worker = self._worker
        if worker is None or not worker.is_running:
            raise not_ready(self.config.endpoint, "closed")
        return worker.run(work)

    def _send(self, chunks: Iterator[Params], upload: Upload) -> None:
        for chunk in chunks:
            upload.advance(self.upload_artifact_chunk(chunk))

    def _worker_of(self, caller: object) -> Worker:
        """Return the running worker that `caller` starts the client in."""
        with self._changing:
            worker = self._worker
            if worker is not None and worker.is_ending:
                worker.end()  # by another thread; the client can only be in one loop
            if worker is None or worker.is_ending:
                # Where `close` finds it before it has a thread: an interrupt may come at any time.
                worker = self._worker = Worker(self._client)
                worker.begin()
            worker.starting.add(caller)
            return worker

    def _leave(self, caller: object) -> None:
        """End the worker with the last of its callers if it was never needed."""
        with self._changing:
            worker = self._worker
            if worker is not None:
                worker.starting.discard(caller)
                if not worker.starting and not worker.is_started:
                    worker.end()

    def _is_deserted(self, worker: Worker) -> bool:
        """Say whether the thread of a worker is gone though nobody has ended it."""
        return sys.is_finalizing() or (not worker.is_ending and worker.process_id != os.getpid())

    def _require_other_thread(self, worker: Worker) -> None:
        if worker.is_current:
            raise CalledFromHandlerError("a handler must not call the façade")
