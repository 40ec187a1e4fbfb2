"""The services that a host publishes, as protocols; each stands under the name given with it.

A host publishes those that it has; a plugin declares those that it needs and waits for the others.
Methods that do I/O are asynchronous and take a signal, which says that nobody waits for the result:
they raise its reason, or where their port has a code for it, an error with that code. A write that
was asked for before may still be made. Collections that are returned are snapshots.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from patchouli.harness.jsonvalue import Json, JsonObject
    from patchouli.harness.messages import (
        Block,
        ImageRef,
        Message,
        SessionEvent,
        SessionHeader,
        ToolResult,
    )
    from patchouli.harness.plugin import Effect
    from patchouli.harness.signals import CancelSignal


class Session(Protocol):
    """A session that is live in this process."""

    @property
    def header(self) -> SessionHeader:
        """What the session is."""
        ...

    @property
    def events(self) -> Sequence[SessionEvent]:
        """Its log so far, of which a part may not be durable yet."""
        ...


class Sessions(Protocol):
    """The live sessions (service ``sessions``)."""

    def get(self, session_id: str) -> Session | None:
        """Return a live session."""
        ...

    def list(self) -> Sequence[Session]:
        """Return all live sessions."""
        ...

    async def flush(self, session: Session, *, signal: CancelSignal | None = None) -> bool:
        """Run every listener of ``session/flush`` to its end; say whether there was any.

        The listeners run in the caller's context, and flushes may be nested and concurrent.

        Raises:
            SessionError: The session is not live (``SESSION_NOT_LIVE``).
        """
        ...


class Agent(Protocol):
    """An agent, which works in the session of the same id."""

    @property
    def id(self) -> str:
        """The id of its session."""
        ...

    @property
    def status(self) -> Literal["idle", "running"]:
        """Whether it is in a turn."""
        ...

    @property
    def options(self) -> Mapping[str, Json]:
        """Provider, model, maxTokens and whatever else the host lets one choose."""
        ...

    @property
    def session(self) -> Session:
        """Its session."""
        ...

    def inject(self, message: Message) -> None:
        """Queue `message` for the next step; an idle agent is not woken.

        A step that has taken its batch does not see it, and a cancelled turn may discard it.
        """
        ...


class Agents(Protocol):
    """The agents of this process (service ``agents``)."""

    def get(self, agent_id: str) -> Agent | None:
        """Return an agent."""
        ...

    def list(self) -> Sequence[Agent]:
        """Return all agents."""
        ...

    def register(self, agent: Agent) -> Effect:
        """Publish `agent` and announce ``agent/created``; the undo notifies ``agent/disposed``.

        Raises:
            Exception: What a listener raised to veto the agent, which is not published then.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSlice:
    """A part of a session's log, without a gap."""

    meta: SessionHeader
    events: Sequence[SessionEvent]


class SessionPersistence(Protocol):
    """The stored logs (service ``sessionPersistence``)."""

    async def read_from(
        self, session_id: str, from_seq: int, *, signal: CancelSignal | None = None
    ) -> SessionSlice:
        """Return what is durable of a log from `from_seq` on, perhaps nothing.

        Raises:
            SessionError: Nothing of the session is stored (``SESSION_NOT_FOUND``).
            ValueError: `from_seq` is negative.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """What is known of a session without reading its log.

    Attributes:
        header: What the session is.
        live: Whether it is live in this process.
        persisted: Whether all of its log is durable.
        revision: Equal if and only if the log is unchanged; None if the host cannot tell.
    """

    header: SessionHeader
    live: bool
    persisted: bool
    revision: str | None = None


class SessionQuery(Protocol):
    """All sessions, live and stored (service ``sessionQuery``); for trusted plugins only.

    Raises of its methods: `SessionError` with ``SESSION_NOT_FOUND``, ``CORRUPT_SESSION``,
    ``PERSISTENCE_FAILED``, ``SOURCE_CONFLICT`` or ``ABORTED``.
    """

    async def list_sessions(self, *, signal: CancelSignal | None = None) -> Sequence[SessionRecord]:
        """Return all sessions, the newest first, always in the same order."""
        ...

    async def read_session(
        self, session_id: str, *, signal: CancelSignal | None = None
    ) -> SessionSlice:
        """Return the whole log of a session, validated."""
        ...

    async def read_range(
        self,
        session_id: str,
        from_seq: int,
        limit: int,
        *,
        signal: CancelSignal | None = None,
    ) -> SessionSlice:
        """Return at most `limit` events from `from_seq` on."""
        ...


class ToolRun(Protocol):
    """One run of a tool, as its body and the hooks see it."""

    @property
    def token(self) -> object:
        """Stands for this run and is equal to no other."""
        ...

    @property
    def call_id(self) -> str:
        """The id of the call."""
        ...

    @property
    def root_call_id(self) -> str:
        """The id of the outermost call, which is this one unless it is nested."""
        ...

    @property
    def name(self) -> str:
        """The name of the tool."""
        ...

    @property
    def arguments(self) -> object:
        """What it was called with: read-only JSON, an object unless the call was malformed."""
        ...

    @property
    def agent(self) -> Agent | None:
        """The agent that called, if one did."""
        ...

    @property
    def parent(self) -> object | None:
        """The token of the run that made this one; None for a root call."""
        ...

    @property
    def signal(self) -> CancelSignal:
        """Fires when nobody waits for the result any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool that a model can call.

    Attributes:
        name: What the model calls it by.
        description: Tells the model when to.
        parameters: JSON Schema of the arguments, with an object at its root. A host may check it;
            the body must not rely on that.
        output_schema: JSON Schema of the value.
        execute: The body; what it raises becomes the error of the result.
        render: Makes what the model sees, from the arguments and the value.
        present_call: Makes a hint for a user interface from the arguments.
    """

    name: str
    description: str
    parameters: JsonObject
    output_schema: JsonObject
    execute: Callable[[JsonObject, ToolRun], Awaitable[Json]]
    render: Callable[[JsonObject, Json], list[Block]]
    present_call: Callable[[JsonObject], JsonObject | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A request to run a tool.

    Attributes:
        call_id: The id of the call.
        name: The tool.
        arguments: What it is called with; anything but an object is refused, as a result.
        agent: Who calls, if an agent does.
        parent: The run in which the call is made, if it is nested.
        signal: Fires when nobody waits for the result any more.
    """

    call_id: str
    name: str
    arguments: Json
    agent: Agent | None = None
    parent: ToolRun | None = None
    signal: CancelSignal | None = None


class Tools(Protocol):
    """The tools of this process (service ``tools``)."""

    def register(self, tool: ToolDefinition) -> Effect:
        """Make a tool callable.

        Raises:
            ValueError: Another tool has the name.
        """
        ...

    def schemas(self, agent: Agent | None = None) -> Sequence[JsonObject]:
        """Return name, description and parameters of each tool that `agent` may call."""
        ...

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run a tool and return its read-only result; whatever goes wrong is a result too.

        After the body the hooks ``tools/post-execute`` and ``tools/result`` have run. Only what
        ends the caller as well is raised: the cancellation of its task.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image: its canonical reference and its bytes."""

    ref: ImageRef
    data: bytes


class Attachments(Protocol):
    """The images that logs refer to (service ``attachments``)."""

    async def read_image(self, ref: ImageRef, *, signal: CancelSignal | None = None) -> StoredImage:
        """Return an image whose bytes are those that `ref` names.

        Raises:
            AttachmentError: It is missing or differs from `ref`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FsTarget:
    """A place in a file system.

    Attributes:
        key: The identity: one file has one key, whatever path leads to it. Opaque.
        display_path: For people and models only.
    """

    key: str
    display_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FsInfo:
    """What is at a place.

    Attributes:
        version: Changes when the content may have changed; compared for equality only.
        type: What it is.
        size: Its length in bytes, where that means something.
    """

    version: str
    type: Literal["file", "directory", "other"]
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FsPathInfo:
    """What a path names itself, its last component not followed."""

    version: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FsEntry:
    """One name in a directory, as the directory tells it."""

    name: str
    type: Literal["file", "directory", "symlink", "other"]


class FileSystem(Protocol):
    """Files that plugins may read (service ``fs``).

    Raises of its methods: `FsError` with ``FS_NOT_FOUND``, ``FS_NOT_DIRECTORY``,
    ``FS_NOT_REGULAR_FILE``, ``FS_TOO_LARGE``, ``FS_PERMISSION_DENIED``, ``FS_IO_ERROR`` or
    ``FS_ABORTED``. A relative path starts at `cwd`, an absolute directory.
    """

    async def resolve(
        self, path: str, *, cwd: str | None = None, signal: CancelSignal | None = None
    ) -> FsTarget:
        """Return the place that `path` leads to, links followed; nothing need be there."""
        ...

    def contains(self, parent: FsTarget, child: FsTarget) -> bool:
        """Say whether `child` is `parent` or lies below it."""
        ...

    async def stat(self, target: FsTarget, *, signal: CancelSignal | None = None) -> FsInfo | None:
        """Return what is at a place, or None if nothing is."""
        ...

    async def lstat(
        self, path: str, *, cwd: str | None = None, signal: CancelSignal | None = None
    ) -> FsPathInfo | None:
        """Return what `path` itself is, or None if there is nothing."""
        ...

    async def list_dir(
        self, target: FsTarget, *, signal: CancelSignal | None = None
    ) -> Sequence[FsEntry]:
        """Return the names in a directory, in order."""
        ...

    async def read_bytes(
        self, target: FsTarget, max_bytes: int, *, signal: CancelSignal | None = None
    ) -> bytes:
        """Return the whole of a file that has at most `max_bytes`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBatch:
    """Hints that something changed.

    Attributes:
        paths: Where to look again.
        rescan: Whether hints were lost, so that all must be looked at.
    """

    paths: Sequence[str]
    rescan: bool = False


@runtime_checkable
class WatchableFileSystem(FileSystem, Protocol):
    """A file system that tells what changes."""

    def watch(
        self, root: FsTarget, *, signal: CancelSignal | None = None
    ) -> AsyncIterator[WatchBatch]:
        """Yield hints about what changes at and below `root`."""
        ...


class Workspace(Protocol):
    """A directory that a person works in."""

    @property
    def id(self) -> str:
        """Made up once, never changed, and not the path."""
        ...

    @property
    def path(self) -> str:
        """The canonical absolute directory."""
        ...

    @property
    def title(self) -> str:
        """For people."""
        ...

    async def status(self, *, signal: CancelSignal | None = None) -> Literal["ok", "missing-dir"]:
        """Say whether the directory is there now."""
        ...


class WorkspaceRegistry(Protocol):
    """The known workspaces (service ``workspaceRegistry``).

    A host that keeps them in a storage domain emits ``domain/changed`` when they change.
    """

    def list(self) -> Sequence[Workspace]:
        """Return all workspaces."""
        ...


RecordValidator: TypeAlias = "Callable[[Json], object]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingletonSpec:
    """A record that a domain has exactly one of.

    Attributes:
        initial: What it is until it is first put.
        validate: Raises for a value that it must not have.
    """

    initial: Json
    validate: RecordValidator


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSpec:
    """A storage domain: what one plugin keeps.

    Attributes:
        name: Lower-case letters, digits and underscores.
        version: Of the records; a domain stored under another one does not open.
        tables: For each table, what raises for a record that it must not hold.
        singleton: The one record of the domain itself, if it has one.
    """

    name: str
    version: int
    tables: Mapping[str, RecordValidator]
    singleton: SingletonSpec | None = None


class KvTable(Protocol):
    """Records by key, read from memory and written through."""

    def get(self, key: str) -> Json | None:
        """Return a record."""
        ...

    def items(self) -> Iterator[tuple[str, Json]]:
        """Return the records as they are now."""
        ...

    def __len__(self) -> int:
        """Return how many records there are."""
        ...

    async def put(self, key: str, value: Json, *, signal: CancelSignal | None = None) -> None:
        """Keep a record; it is durable before it can be read.

        Raises:
            DomainError: ``invalid-record``, be it for the key; ``closed``; or a code of the host's
                own if its store fails.
        """
        ...

    async def delete(self, key: str, *, signal: CancelSignal | None = None) -> bool:
        """Drop a record; say whether there was one.

        Raises:
            DomainError: As for `put`.
        """
        ...


class Singleton(Protocol):
    """The one record of a domain."""

    def get(self) -> Json:
        """Return the record."""
        ...

    async def put(self, value: Json, *, signal: CancelSignal | None = None) -> None:
        """Replace the record; it is durable before it can be read.

        Raises:
            DomainError: As for `KvTable.put`.
        """
        ...


class Domain(Protocol):
    """An open storage domain."""

    def table(self, name: str) -> KvTable:
        """Return a table of the spec.

        Raises:
            KeyError: The spec has no such table.
        """
        ...

    def singleton(self) -> Singleton:
        """Return the one record.

        Raises:
            KeyError: The spec has none.
        """
        ...

    async def close(self, *, signal: CancelSignal | None = None) -> None:
        """Refuse new writes and return when those under way are done; once or more often.

        A signal ends the wait alone: the domain is closed all the same.
        """
        ...


class StorageDomains(Protocol):
    """Durable records for plugins (service ``storageDomain``)."""

    async def open(self, spec: DomainSpec, *, signal: CancelSignal | None = None) -> Domain:
        """Open a domain, which its opener closes.

        Raises:
            DomainError: ``already-open`` in this process, ``version-mismatch``, ``invalid-record``,
                ``backend-not-found``, or a code of the host's own if its store fails.
        """
        ...
