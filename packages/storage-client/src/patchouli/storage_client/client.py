"""The client: one method for each of the daemon's, and helpers made of them.

`link` says how it is connected. The daemon outlives the client, which has no method to stop it. All
of a client belongs to the event loop that it was started in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from patchouli.protocol import (
    CHECKPOINT,
    COMPACT,
    CREATE,
    DELETE,
    DOWNLOAD_CHUNK,
    READ,
    RETRIEVE,
    STATUS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATE,
    UPLOAD_BEGIN,
    UPLOAD_CHUNK,
    UPLOAD_COMMIT,
)
from patchouli.storage_client.artifacts import Download, Upload
from patchouli.storage_client.configuration import settings
from patchouli.storage_client.connection import RECEIVE_LIMIT_BYTES
from patchouli.storage_client.errors import PatchouliRpcError
from patchouli.storage_client.link import Link
from patchouli.storage_client.recipes import (
    Bases,
    heads_to_delete,
    identity,
    is_not_found,
    names,
    next_instruction,
    query_params,
    require_object,
    work_unit_metas,
)
from patchouli.storage_client.subscriptions import (
    ChangeClose,
    ChangeSubscription,
    Subscriptions,
    subscription_of,
)
from patchouli.storage_client.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType
    from typing import Self

    from patchouli.protocol import Capability, JsonObject
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
    from patchouli.storage_client.subscriptions import BoundaryHandler, ChangeHandler

T = TypeVar("T")


class StorageClient:
    """One connection to the daemon.

    As a context manager it is started on entry and closed on exit.
    """

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        receive_limit_bytes: int = RECEIVE_LIMIT_BYTES,
    ) -> None:
        """Prepare a closed client; `receive_limit_bytes` bounds a line of the daemon.

        Raises:
            TypeError: `config` is something else than settings.
        """
        self.config: Final = settings(config)
        tasks = Tasks()
        self._subscriptions: Final = Subscriptions(tasks, self._unsubscribe_from)
        self._link: Final = Link(
            self.config,
            tasks,
            subscriptions=self._subscriptions,
            receive_limit_bytes=receive_limit_bytes,
        )

    @property
    def state(self) -> State:
        """Where the client is between closed and ready."""
        return self._link.state

    @property
    def server(self) -> ServerInfo | None:
        """What the handshake has settled, None while the client is not connected."""
        return self._link.server

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Be connected, and start a daemon for that if none answers and the settings allow it.

        Callers at the same time share one attempt, which ends when none of them is left. After a
        failure the state is the one before.

        Raises:
            DaemonUnavailable: Nobody answers, and none is to be started.
            ConnectFailedError: The endpoint cannot be connected to.
            DaemonStartError: The command of the daemon cannot be run.
            StartupTimeoutError: There was no handshake in time.
            ProtocolVersionError: The daemon speaks another version.
            MalformedAnswerError: What answers is no daemon.
            PatchouliRpcError: The daemon refused the handshake.
            ClientClosedError: The client was closed meanwhile.
        """
        await self._link.start()

    async def close(self) -> None:
        """Be closed: calls under way and a start fail, subscriptions settle, the daemon goes on.

        Handlers that still run are cancelled and waited for. Closing again does nothing.
        """
        await self._link.close()

    async def status(self) -> StatusResult:
        """Return how the daemon is."""
        return await self._call(STATUS, {"meta": {}, "data": {}})

    async def checkpoint(self) -> CheckpointResult:
        """Have the daemon fold the log of its store into the database."""
        return await self._call(CHECKPOINT, {"meta": {}, "data": {}})

    async def compact(self, *, limit: int | None = None, with_due: bool = False) -> CompactResult:
        """Have the daemon remove some of what is past its retention, at most `limit` things.

        `is_more_due` in the answer says whether to call again; `with_due` counts what is left.
        """
        data: dict[str, object] = {} if limit is None else {"limit": limit}
        if with_due:
            data["with_due"] = True
        return await self._call(COMPACT, {"meta": {}, "data": data})

    async def create(self, params: Params) -> AcceptedResult:
        """Create an entity: `data` is `{type, id?, value}`."""
        return await self._call(CREATE, params)

    async def read(self, params: Params) -> ReadResult:
        """Return all heads of an entity: `data` is `{ref}`."""
        return await self._call(READ, params)

    async def retrieve(self, params: Params) -> Page:
        """Return a page of entities: `data` is `{query, types?, limit?}`, `query` a JSON text."""
        return await self._call(RETRIEVE, params)

    async def update(self, params: Params) -> AcceptedResult:
        """Replace a value: `data` is `{ref, value}`, `meta` names the versions it starts from."""
        return await self._call(UPDATE, params)

    async def delete(self, params: Params) -> DeletedResult:
        """Delete an entity: `data` is `{ref}`, `meta` names the versions it starts from."""
        return await self._call(DELETE, params)

    async def begin_artifact_upload(self, params: Params) -> UploadBegunResult:
        """Open an upload."""
        return await self._call(UPLOAD_BEGIN, params, needs="artifacts")

    async def upload_artifact_chunk(self, params: Params) -> UploadChunkResult:
        """Send some bytes of an upload."""
        return await self._call(UPLOAD_CHUNK, params, needs="artifacts")

    async def commit_artifact_upload(self, params: Params) -> AcceptedResult:
        """Make an upload an entity."""
        return await self._call(UPLOAD_COMMIT, params, needs="artifacts")

    async def download_artifact_chunk(self, params: Params) -> DownloadChunkResult:
        """Return some bytes of an artifact."""
        return await self._call(DOWNLOAD_CHUNK, params, needs="artifacts")

    async def subscribe(
        self,
        params: Params,
        handler: ChangeHandler,
        on_boundary: BoundaryHandler | None = None,
    ) -> ChangeSubscription:
        """Have `handler` called with each change of a scope, in their order.

        The handler is called from the event loop as the event is read, perhaps before this call has
        returned; one that is asynchronous is started then and not waited for, so that several may
        run at once. `on_boundary` gets positions without a change. What either raises is logged and
        disturbs nothing; `KeyboardInterrupt` and `SystemExit` then end the event loop, as they do
        wherever else they are raised in it, behind what was read together with this event.

        Raises:
            TypeError: A handler cannot be called; nothing was sent.
        """
        if not (callable(handler) and (on_boundary is None or callable(on_boundary))):
            raise TypeError("a handler must be something that can be called with an event")

        def opened(answer: JsonObject) -> ChangeSubscription:
            return self._subscriptions.open(answer, handler, on_boundary)

        return await self._call(
            SUBSCRIBE,
            params,
            opened,
            needs="subscriptions",
            forgotten=self._forget_subscription,
        )

    async def unsubscribe(self, params: Params) -> UnsubscribeResult:
        """End a subscription: `data` is `{subscription_id}`. Its handle settles `unsubscribed`."""

        def closed(answer: JsonObject) -> UnsubscribeResult:
            self._subscriptions.close(subscription_of(params), ChangeClose(kind="unsubscribed"))
            return cast("UnsubscribeResult", cast("object", answer))

        return await self._call(UNSUBSCRIBE, params, closed, needs="subscriptions")

    async def query(
        self,
        meta: Mapping[str, object],
        instruction: Mapping[str, object],
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Page:
        """Return a page of what fits `instruction`, an object such as `{"text": "seeds"}`."""
        return await self.retrieve(query_params(meta, instruction, types=types, limit=limit))

    async def query_pages(
        self,
        meta: Mapping[str, object],
        instruction: Mapping[str, object],
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Page]:
        """Yield page after page; a cursor in `instruction` says which is the first.

        Raises:
            MalformedAnswerError: A page has a `next_cursor` that is no string.
        """
        following: Mapping[str, object] | None = instruction
        while following is not None:
            page = await self.query(meta, following, types=types, limit=limit)
            yield page
            following = next_instruction(instruction, page)

    async def retrieve_by_ids(
        self,
        meta: Mapping[str, object],
        ids: Sequence[str],
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Page:
        """Return a page of the entities with these ids."""
        return await self.query(meta, {"ids": names("ids", ids)}, types=types, limit=limit)

    async def upload_artifact(
        self, params: Params, data: Bytes | AsyncIterable[Bytes]
    ) -> AcceptedResult:
        """Upload bytes as an artifact: `params` are those of the begin.

        `data` may come in pieces of any size; about one chunk of it is held then. What fails
        is never visible.

        Raises:
            MalformedAnswerError: The daemon takes no bytes.
        """
        upload = Upload(params, await self.begin_artifact_upload(params))
        if isinstance(data, bytes | bytearray | memoryview):
            await self._send(upload.chunks(data), upload)
        else:
            async for piece in data:
                await self._send(upload.chunks(piece), upload)
        await self._send(upload.rest(), upload)
        return await self.commit_artifact_upload(upload.commit)

    async def download_artifact(
        self,
        meta: Mapping[str, object],
        id: str,  # noqa: A002 -- the word of the wire
        version: str | None = None,
    ) -> bytes:
        """Return the bytes of an artifact, all of one version.

        Raises:
            ArtifactChangedError: Another version came meanwhile.
            MalformedAnswerError: What came is not what was asked for.
        """
        return b"".join([piece async for piece in self.download_artifact_pieces(meta, id, version)])

    async def download_artifact_pieces(
        self,
        meta: Mapping[str, object],
        id: str,  # noqa: A002 -- the word of the wire
        version: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of an artifact, all of one version, a chunk at a time.

        Raises:
            ArtifactChangedError: Another version came meanwhile.
            MalformedAnswerError: What came is not what was asked for.
        """
        _, server = self._link.require_ready("artifacts")
        download = Download(
            meta, id, version=version, chunk_bytes=server.limits.max_artifact_chunk_bytes
        )
        while not download.is_complete:
            yield download.advance(await self.download_artifact_chunk(download.request()))

    async def run_work_unit(
        self,
        meta: Mapping[str, object],
        close_meta: Mapping[str, object],
        mutations: Sequence[Callable[[JsonObject], Awaitable[T]]],
    ) -> tuple[T, ...]:
        """Run mutations one after another, each with its metadata, and return their results.

        Each gets a copy of `meta`, the last one with `close_meta`, which closes the unit and
        publishes all of them at once. The first that fails ends the sequence; its unit stays open
        on the daemon until it expires.

        What identifies a unit in `meta` is the policy's to say, so it cannot be asked for here. The
        shipped one goes by `transaction_id`; without that each mutation is published alone.

        Raises:
            ValueError: There is nothing to run, nothing to close the unit with, or a member of
                `close_meta` in `meta`; nothing was run.
        """
        metas = work_unit_metas(meta, close_meta, count=len(mutations))
        return tuple([await mutate(fresh) for mutate, fresh in zip(mutations, metas, strict=True)])

    async def upsert(
        self,
        meta: Mapping[str, object],
        ref: Mapping[str, object],
        value: object,
        *,
        base_versions_key: str = "base_versions",
        conflict_strategy_key: str = "conflict_strategy",
    ) -> AcceptedResult:
        """Let `value` be the one active version of `ref`, whatever was there before.

        Heads that are in conflict become one, and a deleted entity is revived. The keys are those
        members of `meta` from which the policy reads the bases and the strategy.

        Raises:
            PatchouliRpcError: Among others `VERSION_CONFLICT`, if others were faster six times.
        """
        bases = Bases(
            meta, base_versions_key=base_versions_key, conflict_strategy_key=conflict_strategy_key
        )
        try:
            return await self.create(bases.creation(ref, value))
        except PatchouliRpcError as error:
            versions = bases.after(error)
        replacement = {**identity(ref), "value": value}
        while True:
            try:
                return await self.update(bases.mutation(versions, replacement))
            except PatchouliRpcError as error:
                versions = bases.after(error)

    async def remove(
        self,
        meta: Mapping[str, object],
        ref: Mapping[str, object],
        *,
        base_versions_key: str = "base_versions",
        conflict_strategy_key: str = "conflict_strategy",
    ) -> DeletedResult | None:
        """Let `ref` be deleted, whatever was there before; None if it was so or never existed.

        Reads first, so that a tombstone is not written over a tombstone.

        Raises:
            PatchouliRpcError: Among others `VERSION_CONFLICT`, if others were faster five times.
        """
        bases = Bases(
            meta, base_versions_key=base_versions_key, conflict_strategy_key=conflict_strategy_key
        )
        while True:
            try:
                read = await self.read({"meta": meta, "data": identity(ref)})
            except PatchouliRpcError as error:
                if is_not_found(error):
                    return None
                raise
            versions = heads_to_delete(read)
            if not versions:
                return None
            try:
                return await self.delete(bases.mutation(versions, identity(ref)))
            except PatchouliRpcError as error:
                bases.after(error)

    @property
    def chunk_bytes(self) -> int:
        """The most bytes that a chunk of an artifact may have.

        Raises:
            DaemonUnavailable: The client is not connected, so nobody has told.
        """
        _, server = self._link.require_ready()
        return server.limits.max_artifact_chunk_bytes

    def _call(
        self,
        method: str,
        params: Params,
        receive: Callable[[Any], Any] | None = None,
        *,
        needs: Capability | None = None,
        forgotten: Callable[[Any], None] | None = None,
    ) -> Awaitable[Any]:  # of what `receive` makes, or of the shape that the method's answer has
        require_object("what a method takes", params, "meta", "data")
        connection = self._link.connection
        if connection is None or needs is not None:
            connection, _ = self._link.require_ready(needs)
        return connection.call(method, params, receive=receive, forgotten=forgotten)

    async def _send(self, chunks: Iterator[Params], upload: Upload) -> None:
        for chunk in chunks:
            upload.advance(await self.upload_artifact_chunk(chunk))

    async def _unsubscribe_from(self, subscription_id: str) -> None:
        await self.unsubscribe({"meta": {}, "data": {"subscription_id": subscription_id}})

    def _forget_subscription(self, answer: Any) -> None:
        """End a subscription whose caller was cancelled: nobody else could."""
        is_open = isinstance(answer, ChangeSubscription)
        subscription_id = answer.subscription_id if is_open else subscription_of(answer)
        self._subscriptions.close(subscription_id, ChangeClose(kind="unsubscribed"))
        connection = self._link.connection
        if subscription_id is not None and connection is not None:
            connection.post(UNSUBSCRIBE, {"meta": {}, "data": {"subscription_id": subscription_id}})
