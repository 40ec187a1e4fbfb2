"""Sessions in memory: the live logs, the stored ones behind them, and the view over both.

A log grows in the live session and is stored when somebody flushes; the stored log is a second one,
so that what is durable and what is not can be told apart. Events are read-only and never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, cast, overload

from patchouli.harness.errors import SessionError
from patchouli.harness.events import SESSION_CREATED, SESSION_DISPOSED, SESSION_EVENT, SESSION_FLUSH
from patchouli.harness.jsonvalue import snapshot
from patchouli.harness.messages import LOG_VERSION, SessionEvent, SessionHeader, read_only
from patchouli.harness.ports import (
    Session,
    SessionPersistence,
    SessionQuery,
    SessionRecord,
    Sessions,
    SessionSlice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from patchouli.harness.kernel import Kernel
    from patchouli.harness.signals import CancelSignal

NEW_HEADER_KEYS: Final = frozenset(
    ("cwd", "parentSession", "seedLength", "origin", "delegationDepth", "agentPreset")
)


class _Log(Sequence[SessionEvent]):
    """A log as it was at one time: the first events of a list that only grows, not copied."""

    __slots__ = ("_events", "_length")

    def __init__(self, events: list[SessionEvent]) -> None:
        self._events = events
        self._length = len(events)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        places = range(self._length)[index]
        if isinstance(places, int):
            return self._events[places]
        return tuple(self._events[place] for place in places)

    def __iter__(self) -> Iterator[SessionEvent]:
        return islice(self._events, self._length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __repr__(self) -> str:
        return repr([*self])


class LiveSession(Session):
    """A session whose log is being written; made by `MemorySessions`."""

    def __init__(
        self,
        sessions: MemorySessions,
        header: SessionHeader,
        events: Sequence[SessionEvent],
        life: int,
    ) -> None:
        self.life = life  # tells two sessions apart that bear one id
        self._sessions = sessions
        self._header = header
        self._events = [*events]

    @property
    def header(self) -> SessionHeader:
        """What the session is, read-only."""
        return self._header

    @property
    def events(self) -> Sequence[SessionEvent]:
        """The log so far; what is written later is not in it."""
        return _Log(self._events)

    def append(self, kind: str, data: Mapping[str, object], **more: object) -> SessionEvent:
        """Write an event into the log and notify ``session/event``; return it.

        Args:
            kind: Its type.
            data: Its data.
            more: ``surfaceOp``, ``sourceEventSeqs``, ``ignorable``.

        Raises:
            NotJson: `data` or something in `more` is no lossless JSON.
        """
        event = self._sessions.made_event(len(self._events), kind, data, more)
        self._events.append(event)
        self._sessions.tell_event(self, event)
        return event


@dataclass(slots=True, kw_only=True)
class _Stored:
    header: SessionHeader
    events: Sequence[SessionEvent]
    life: int


class MemorySessions(Sessions, SessionPersistence, SessionQuery):
    """The services ``sessions``, ``sessionPersistence`` and ``sessionQuery`` of one process."""

    def __init__(
        self, kernel: Kernel, *, now_ms: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self._kernel = kernel
        self._now_ms = now_ms
        self._new_id = new_id
        self._live: dict[str, LiveSession] = {}
        self._stored: dict[str, _Stored] = {}
        self._lives = count(1)
        kernel.root.on(SESSION_FLUSH, self._store)

    def create(self, session_id: str | None = None, **header: object) -> LiveSession:
        """Return a new live session, announced as ``session/created``.

        Args:
            session_id: Its id; one is made up without it.
            header: Further keys of its header, ``cwd`` for instance.

        Raises:
            ValueError: A session has the id, or there is no such key.
            Exception: What a listener raised to veto the session, which does not exist then.
        """
        chosen = self._new_id() if session_id is None else session_id
        if chosen in self._live or chosen in self._stored:
            raise ValueError(f"there is a session {chosen!r} already")
        if unknown := header.keys() - NEW_HEADER_KEYS:
            raise ValueError(f"a session header has no {', '.join(sorted(unknown))}")
        made = {"version": LOG_VERSION, "id": chosen, "createdAt": self._now_ms(), **header}
        session = LiveSession(
            self, cast("SessionHeader", read_only(snapshot(made))), (), next(self._lives)
        )
        return self._publish(session)

    def resume(self, session_id: str) -> LiveSession:
        """Return a stored session as a live one, announced as ``session/created``.

        Raises:
            SessionError: It is not stored (``SESSION_NOT_FOUND``).
            ValueError: It is live already.
        """
        stored = self._stored_session(session_id)
        if session_id in self._live:
            raise ValueError(f"session {session_id!r} is live already")
        return self._publish(LiveSession(self, stored.header, stored.events, stored.life))

    def dispose(self, session: Session) -> None:
        """Make a session live no more and notify ``session/disposed``; nothing is stored."""
        if self._live.get(session.header["id"]) is session:
            del self._live[session.header["id"]]
            self._kernel.root.notify(SESSION_DISPOSED, session)

    def get(self, session_id: str) -> LiveSession | None:
        """Return a live session."""
        return self._live.get(session_id)

    def list(self) -> Sequence[LiveSession]:
        """Return the live sessions in the order in which they became so."""
        return tuple(self._live.values())

    async def flush(self, session: Session, *, signal: CancelSignal | None = None) -> bool:
        """Run every listener of ``session/flush``; the log so far is stored when this returns."""
        if signal is not None:
            signal.raise_if_cancelled()
        if self._live.get(session.header["id"]) is not session:
            raise SessionError("SESSION_NOT_LIVE", f"session {session.header['id']!r} is not live")
        took_part = self._kernel.has_listeners(SESSION_FLUSH)
        await self._kernel.root.gather(SESSION_FLUSH, session)
        return took_part

    async def read_from(
        self, session_id: str, from_seq: int, *, signal: CancelSignal | None = None
    ) -> SessionSlice:
        """Return what is stored of a log from `from_seq` on."""
        if signal is not None:
            signal.raise_if_cancelled()
        if from_seq < 0:
            raise ValueError("a sequence number is never negative")
        stored = self._stored_session(session_id)
        return SessionSlice(meta=stored.header, events=stored.events[from_seq:])

    async def list_sessions(self, *, signal: CancelSignal | None = None) -> Sequence[SessionRecord]:
        """Return all sessions, the newest first, then by id."""
        _refuse_aborted(signal)
        known = {**dict.fromkeys(self._stored), **dict.fromkeys(self._live)}
        records = [self._record(session_id) for session_id in known]
        return sorted(records, key=lambda one: (-one.header["createdAt"], one.header["id"]))

    async def read_session(
        self, session_id: str, *, signal: CancelSignal | None = None
    ) -> SessionSlice:
        """Return the whole log, the live one if there is one."""
        _refuse_aborted(signal)
        live = self._live.get(session_id)
        if live is not None:
            return SessionSlice(meta=live.header, events=live.events)
        stored = self._stored_session(session_id)
        return SessionSlice(meta=stored.header, events=stored.events)

    async def read_range(
        self,
        session_id: str,
        from_seq: int,
        limit: int,
        *,
        signal: CancelSignal | None = None,
    ) -> SessionSlice:
        """Return at most `limit` events from `from_seq` on."""
        if from_seq < 0 or limit < 0:
            raise ValueError("a range has no negative bounds")
        whole = await self.read_session(session_id, signal=signal)
        return SessionSlice(meta=whole.meta, events=whole.events[from_seq : from_seq + limit])

    def made_event(
        self, seq: int, kind: str, data: Mapping[str, object], more: Mapping[str, object]
    ) -> SessionEvent:
        """Return an event as it stands in a log."""
        made = {"type": kind, "seq": seq, "time": self._now_ms(), "data": data, **more}
        return cast("SessionEvent", read_only(snapshot(made)))

    def tell_event(self, session: LiveSession, event: SessionEvent) -> None:
        """Notify ``session/event``."""
        self._kernel.root.notify(SESSION_EVENT, session, event)

    def _publish(self, session: LiveSession) -> LiveSession:
        session_id = session.header["id"]
        self._live[session_id] = session
        try:
            self._kernel.root.announce(SESSION_CREATED, session)
        except BaseException:
            # Those who were told of it before the veto hear that it is gone.
            self.dispose(session)
            raise
        return session

    def _store(self, session: LiveSession) -> None:
        self._stored[session.header["id"]] = _Stored(
            header=session.header, events=session.events, life=session.life
        )

    def _stored_session(self, session_id: str) -> _Stored:
        stored = self._stored.get(session_id)
        if stored is None:
            raise SessionError("SESSION_NOT_FOUND", f"no session {session_id!r} is stored")
        return stored

    def _record(self, session_id: str) -> SessionRecord:
        live, stored = self._live.get(session_id), self._stored.get(session_id)
        log: Any = stored if live is None else live  # Any: one of both, with what they share
        return SessionRecord(
            header=log.header,
            live=live is not None,
            persisted=stored is not None and len(stored.events) == len(log.events),
            revision=f"{log.life}.{len(log.events)}",
        )


def _refuse_aborted(signal: CancelSignal | None) -> None:
    if signal is not None and signal.reason is not None:
        raise SessionError("ABORTED", "nobody waits for the sessions") from signal.reason
