"""Change subscriptions: one reader a scope, one encoding a change, any number of subscribers.

The log of the provider is the buffer. For each scope with live subscriptions one puller waits for
its frontier to move, reads the new changes once, encodes them once and keeps the latest of them in
a bounded window that all subscriptions of the scope read from. A subscription is a position:

* inside the window it takes what follows its position and passes its filter, without any I/O;
* behind the window (it resumes, or it was slow) it reads its own pages from the log, filtered
  there, until it has caught up. It delays nobody and costs no memory meanwhile.

The windows are bounded one by one and together; beyond, the oldest changes go, from whatever scope
they are. Nobody loses anything by it: the log has them.

A position that the log no longer reaches ends the subscription with `CursorExpiredError`; nothing
is ever skipped. A commit only wakes the puller, it never carries data.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING

from patchouli.backend.canonical import canonical_bytes
from patchouli.backend.errors import CursorExpiredError, InvalidRequestError
from patchouli.backend.limits import Limits
from patchouli.provider import INTEGER_MAX, ChangesPlan, Cursor, UnavailableError, check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.provider import Change, ChangePage, Clock, Provider, ScopeText

PAGE_LIMIT = 256  # changes read from the log at once
PAGE_BYTES = 4 * 1024 * 1024  # of metadata read from the log at once
LINES_LIMIT = 4  # finished lines kept with a change
LINE_BYTES = 256  # of a line, at most, beside the change and its metadata
# While the store is unavailable; after the last the subscriptions end with its error.
RETRY_DELAYS_MS = (250, 500, 1000, 2000, 4000, 8000, 16000, 30000)

_START = "0"
_END = Cursor(INTEGER_MAX)


@dataclass(slots=True, eq=False)
class Event:
    """A published change, encoded once for all subscribers of its scope."""

    position: Cursor
    type: str
    id: str
    cursor: str
    meta_json: bytes
    change_json: bytes
    lines: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)

    @property
    def size(self) -> int:
        """The bytes that the windows count for it: with as many lines as it may keep."""
        own = len(self.meta_json) + len(self.change_json)
        return own + LINES_LIMIT * (own + LINE_BYTES)


def event_line(event: Event, subscription_id: str) -> bytes:
    """Return the notification of `event` for a subscription, with its line feed.

    Subscriptions of different connections often bear the same id, so the lines of the first few ids
    are kept with the event; the others are built each time.
    """
    line = event.lines.get(subscription_id)
    if line is None:
        line = b"".join(
            (
                b'{"jsonrpc":"2.0","method":"patchouli.changes.event@1","params":{"meta":',
                event.meta_json,
                b',"data":{"subscription_id":',
                canonical_bytes(subscription_id),
                b',"change":',
                event.change_json,
                b"}}}\n",
            )
        )
        if len(event.lines) < LINES_LIMIT:
            event.lines[subscription_id] = line
    return line


class Subscription:
    """A position in the changes of one scope, and what passes its filter."""

    def __init__(
        self,
        feed: _ScopeFeed,
        *,
        position: Cursor,
        types: frozenset[str] | None,
        ids: frozenset[str] | None,
    ) -> None:
        self._feed = feed
        self._position = position
        self._types = types
        self._ids = ids

    @property
    def cursor(self) -> str:
        """The accepted boundary, later the place up to which changes were returned or passed by."""
        return self._feed.cursor_text(self._position)

    async def next_events(self) -> Sequence[Event]:
        """Return the next changes that pass the filter, at least one, waiting for them if needed.

        May be cancelled; nothing is lost then.

        Raises:
            CursorExpiredError: The log no longer holds what follows the position.
            ProviderError: The store failed, or stayed unavailable through all retries.
        """
        while True:
            events, reached = await self._feed.events_after(
                self._position, types=self._types, ids=self._ids
            )
            self._position = reached
            if events:
                return events
            await self._feed.wait_beyond(reached)

    def close(self) -> None:
        """End the subscription; closing again does nothing."""
        self._feed.remove(self)


class ChangeFeeds:
    """The change subscriptions of one engine, grouped by scope."""

    def __init__(
        self,
        provider: Provider,
        *,
        clock: Clock,
        changes_seconds: int,
        limits: Limits | None = None,
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._retained_ms = changes_seconds * 1000
        self.windows = Windows(limits or Limits())
        self._feeds: dict[ScopeText, _ScopeFeed] = {}

    async def subscribe(
        self,
        scope: ScopeText,
        *,
        after_cursor: str | None = None,
        types: frozenset[str] | None = None,
        ids: frozenset[str] | None = None,
        require_time: Callable[[], None] = lambda: None,
    ) -> Subscription:
        """Return a subscription to what follows `after_cursor`, or the present end of the log.

        `require_time` is called when the store has answered, before the cursor is looked at; what
        it raises ends the call.

        Raises:
            InvalidRequestError: The cursor is not one that this protocol ever gave out.
            CursorExpiredError: It is of another database, ahead of the log, or too old.
        """
        page = await self.read(scope, after=_END, limit=1)
        require_time()
        position = (
            page.frontier
            if after_cursor is None
            else parse_cursor(after_cursor, incarnation=page.incarnation)
        )
        require_retained(position, page)
        feed = self._feeds.get(scope)
        if feed is None:
            feed = self._feeds[scope] = _ScopeFeed(
                self, scope, floor=page.frontier, incarnation=page.incarnation
            )
        subscription = Subscription(feed, position=position, types=types, ids=ids)
        feed.add(subscription)
        return subscription

    async def read(
        self,
        scope: ScopeText,
        *,
        after: Cursor,
        limit: int = PAGE_LIMIT,
        types: frozenset[str] | None = None,
        ids: frozenset[str] | None = None,
    ) -> ChangePage:
        """Return one page of the log under the configured retention."""
        return await self._provider.read_changes(
            ChangesPlan(
                scope=scope,
                after=after,
                limit=limit,
                limit_bytes=PAGE_BYTES,
                retained_after_unix_ms=max(0, self._clock.unix_ms() - self._retained_ms),
                types=types,
                ids=ids,
            )
        )

    async def wait(self, scope: ScopeText, after: Cursor) -> None:
        """Return when the frontier of `scope` is beyond `after`."""
        await self._provider.wait_for_changes(scope, after)

    def forget(self, scope: ScopeText, feed: _ScopeFeed) -> None:
        """Let the next subscription of `scope` begin another feed, if `feed` is the present one."""
        if self._feeds.get(scope) is feed:
            del self._feeds[scope]

    async def aclose(self) -> None:
        """Stop all pullers; subscriptions that still wait fail with `UnavailableError`."""
        await asyncio.gather(*(feed.aclose() for feed in tuple(self._feeds.values())))


class Windows:
    """The bounds of all windows, and the events in them from the oldest to the newest."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0
        self._kept: OrderedDict[Event, _ScopeFeed] = OrderedDict()

    def add(self, feed: _ScopeFeed, event: Event) -> None:
        """Count an event that `feed` keeps."""
        self._kept[event] = feed
        self.bytes += event.size

    def remove(self, event: Event) -> None:
        """Count no longer an event that its feed gave up."""
        del self._kept[event]
        self.bytes -= event.size

    def shrink(self) -> None:
        """Let the oldest events go until the rest is within the bound."""
        while self.bytes > self.limits.max_windows_bytes:
            next(iter(self._kept.values())).drop_oldest()


class _ScopeFeed:
    """The window over the changes of one scope, and the task that moves it forward."""

    def __init__(
        self, feeds: ChangeFeeds, scope: ScopeText, *, floor: Cursor, incarnation: str
    ) -> None:
        self._feeds = feeds
        self._scope = scope
        self._incarnation = incarnation
        self._window: deque[Event] = deque()
        self._window_bytes = 0
        self._floor = floor  # the window holds every change after it, up to _reached
        self._reached = floor
        self._moved = asyncio.Event()
        self._failure: Exception | None = None
        self._is_ended = False
        self._subscriptions: set[Subscription] = set()
        self._puller: asyncio.Task[None] | None = None

    def cursor_text(self, position: Cursor) -> str:
        return f"{self._incarnation}.{position}"

    def add(self, subscription: Subscription) -> None:
        self._subscriptions.add(subscription)
        if self._puller is None:
            self._puller = asyncio.create_task(self._pull())

    def remove(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        if not self._subscriptions and self._puller is not None:
            self._puller.cancel()
            self._end()

    async def aclose(self) -> None:
        if self._puller is not None:
            self._puller.cancel()
            await asyncio.wait([self._puller])
        self._fail(UnavailableError("changes", "wait", "the service is stopping"))

    async def events_after(
        self, position: Cursor, *, types: frozenset[str] | None, ids: frozenset[str] | None
    ) -> tuple[list[Event], Cursor]:
        """Return the next events after `position` that pass, and the place looked through to."""
        if position < self._floor:
            page = await self._feeds.read(self._scope, after=position, types=types, ids=ids)
            require_retained(position, page)
            return [self._encode(change) for change in page.changes], page.reached
        first = bisect_right(self._window, position, key=lambda event: event.position)
        # A page at a time, so that one subscription cannot hold the loop for a whole window.
        slice_ = list(islice(self._window, first, first + PAGE_LIMIT))
        # A subscription that caught up from the log may be a little ahead of the window.
        reached = slice_[-1].position if len(slice_) == PAGE_LIMIT else self._reached
        if types is not None or ids is not None:
            slice_ = [
                event
                for event in slice_
                if (types is None or event.type in types) and (ids is None or event.id in ids)
            ]
        return slice_, max(position, reached)

    async def wait_beyond(self, position: Cursor) -> None:
        """Return when the window reaches beyond `position`."""
        while position >= self._reached:
            if self._failure is not None:
                raise self._failure
            await self._moved.wait()

    async def _pull(self) -> None:
        retries = iter(RETRY_DELAYS_MS)
        while True:
            try:
                await self._feeds.wait(self._scope, self._reached)
                page = await self._feeds.read(self._scope, after=self._reached)
                require_retained(self._reached, page)
            except UnavailableError as error:
                delay_ms = next(retries, None)
                if delay_ms is None:
                    self._fail(error)
                    return
                await asyncio.sleep(delay_ms / 1000)
            except Exception as error:  # the top of a task: every subscriber is told
                self._fail(error)
                return
            else:
                retries = iter(RETRY_DELAYS_MS)
                self._admit(page)

    def _admit(self, page: ChangePage) -> None:
        check("I8 the window grows in order and without repetition", lambda: self._follows(page))
        windows = self._feeds.windows
        for change in page.changes:
            event = self._encode(change)
            self._window.append(event)
            self._window_bytes += event.size
            windows.add(self, event)
        limits = windows.limits
        while (
            len(self._window) > limits.max_window_events
            or self._window_bytes > limits.max_window_bytes
        ):
            self.drop_oldest()
        windows.shrink()
        self._reached = page.reached
        self._wake()

    def drop_oldest(self) -> None:
        event = self._window.popleft()
        self._window_bytes -= event.size
        self._floor = event.position
        self._feeds.windows.remove(event)

    def _follows(self, page: ChangePage) -> bool:
        places = [self._reached, *(change.cursor for change in page.changes)]
        return all(map(lt, places, places[1:])) and places[-1] <= page.reached

    def _fail(self, error: Exception) -> None:
        """End all subscriptions with `error`; later ones begin anew."""
        self._failure = error
        self._end()
        self._wake()

    def _end(self) -> None:
        """Count for nothing from now on; who still follows is served from what there is."""
        self._feeds.forget(self._scope, self)
        if not self._is_ended:
            self._is_ended = True
            for event in self._window:
                self._feeds.windows.remove(event)

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _encode(self, change: Change) -> Event:
        cursor = self.cursor_text(change.cursor)
        return Event(
            position=change.cursor,
            type=change.type,
            id=change.id,
            cursor=cursor,
            meta_json=change.event_meta_json.encode(),
            change_json=canonical_bytes(
                {
                    "cursor": cursor,
                    "head_versions": list(change.head_versions),
                    "kind": str(change.kind),
                    "ref": {"id": change.id, "type": change.type},
                }
            ),
        )


def parse_cursor(text: str, *, incarnation: str) -> Cursor:
    """Return the position that a wire cursor names in the database `incarnation`.

    `0` is the start of every log. A bare number is a cursor of a database that numbered without an
    identity; like one of another incarnation it cannot be placed here.

    Raises:
        InvalidRequestError: It has neither form.
        CursorExpiredError: It belongs to another database.
    """
    if text == _START:
        return Cursor(0)
    database, _, number = text.rpartition(".")
    is_number = number.isascii() and number.isdigit() and (number == "0" or number[0] != "0")
    if not is_number or len(number) > len(str(INTEGER_MAX)) or (database == "" and "." in text):
        raise InvalidRequestError(
            "after_cursor is not a cursor; send one that an event or a subscription gave",
            pointer="data/after_cursor",
        )
    if database != incarnation:
        raise CursorExpiredError("the cursor belongs to another database; read the state anew")
    return Cursor(int(number))


def require_retained(position: Cursor, page: ChangePage) -> None:
    """Return if the log of `page` can be followed from `position`.

    Raises:
        CursorExpiredError: It is ahead of the log, or something after it was pruned.
    """
    if position > page.frontier:
        raise CursorExpiredError("the cursor is ahead of the log; read the state anew")
    if position < page.pruned_through:
        raise CursorExpiredError("the cursor is older than what is kept; read the state anew")
