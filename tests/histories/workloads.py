"""What clients do to a scope at once, so that there is something to check.

Every client does one thing after the other and takes its bases from what it was told last, so it is
often late. Few entities make them meet.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tests.histories.history import Accepted, Conflict, Refused, Shown

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random  # noqa: TID251 - what a seeded one is

    from tests.histories.history import Operation
    from tests.histories.recording import Client, Recorder

CUT_OFF: Final = (EOFError, ConnectionError)


class Worker:
    """A client that mutates a few entities of one type, whatever the others do."""

    def __init__(
        self,
        client: Client,
        chance: Random,
        names: list[str],
        type_: str = "memo",
        *,
        tokens: list[str] | None = None,
    ) -> None:
        self._client: Final = client
        self._chance: Final = chance
        self._names: Final = names
        self._type: Final = type_
        self._seen: Final[dict[str, frozenset[str]]] = {}
        self._tokens: Final[list[str]] = [] if tokens is None else tokens

    async def work(self, turns: int, *, session: str | None = None) -> None:
        """Do so many things, or fewer if the connection ends."""
        with suppress(*CUT_OFF):
            for _ in range(turns):
                await self._turn(session)

    async def _turn(self, session: str | None) -> None:
        name = self._chance.choice(self._names)
        bases = self._seen.get(name, frozenset())
        draw = self._chance.random()
        after = (self._tokens[-1],) if self._tokens and draw < 0.2 else ()
        more = {"type_": self._type, "session": session, "after": after}
        strategy = self._chance.choice(("merge", "merge", "mvcc", "reject"))
        value = {"text": f"leaf {self._chance.randrange(1000)}", "n": self._chance.randrange(3)}
        if draw < 0.4:
            done = await self._client.read(name, **more)
        elif not bases or draw < 0.5:
            done = await self._client.create(name, value, **more)
        elif draw < 0.9:
            some = self._chance.sample(sorted(bases), self._chance.randint(1, len(bases)))
            done = await self._client.update(name, some, value, strategy=strategy, **more)
        else:
            done = await self._client.delete(name, bases, strategy=strategy, **more)
        self._learn(name, done)

    def _learn(self, name: str, done: Operation) -> None:
        if done.token is not None:
            self._tokens.append(done.token)
        match done.outcome:
            case Accepted(version=version):
                known = self._seen.get(name, frozenset())
                late = self._chance.random() < 0.3  # go on from what it was, now and then
                self._seen[name] = known if late and known else frozenset([version])
            case Shown() as shown:
                self._seen[name] = shown.heads
            case Conflict(heads):
                self._seen[name] = heads
            case _:
                pass


class Repeater:
    """A client that sends mutations which others send as well, in an order of its own.

    A call says what it does, but for one in ten, which somebody gives another value.
    """

    def __init__(self, client: Client, chance: Random, calls: int) -> None:
        self._client: Final = client
        self._chance: Final = chance
        self._calls: Final = calls
        self._made: Final[dict[str, str]] = {}

    async def work(self, turns: int) -> None:
        """Do so many things, or fewer if the connection ends."""
        with suppress(*CUT_OFF):
            for _ in range(turns):
                await self._turn(self._chance.randrange(self._calls))

    async def _turn(self, call: int) -> None:
        name = f"m-{call // 4}"
        value = {"text": f"leaf {call}", "n": int(self._chance.random() < 0.1)}
        made = self._made.get(name)
        if call % 4 and made is None:
            return
        if call % 4 == 0 or made is None:
            more = {"type_": "entry", "call": f"call {call // 4 * 4}"}
            done = await self._client.create(name, value, **more)
            if isinstance(done.outcome, Accepted):
                self._made[name] = done.outcome.version
            return
        more = {"type_": "entry", "call": f"call {call}"}
        strategy = ("merge", "mvcc", "reject")[call % 4 - 1]
        await self._client.update(name, [made], value, strategy=strategy, **more)


async def repeat_at_once(
    endpoint: Path, recorder: Recorder, chance: Random, *, turns: int = 40, user: str = "mira"
) -> None:
    """Let several clients send the same mutations again and again, and others read them."""
    connected = [await recorder.connect(endpoint, user) for _ in range(5)]
    await asyncio.gather(
        *(Repeater(client, _child(chance), calls=16).work(turns) for client in connected)
    )
    for client in connected:
        await client.close()


class UnitWorker:
    """A client that does a few things in one work unit after the other and closes it.

    One that `keeps` deletes nothing that its unit has made, of which nobody could tell afterwards
    whether it was done.
    """

    def __init__(
        self,
        client: Client,
        chance: Random,
        names: list[str],
        units: list[str],
        *,
        keeps: bool = False,
    ) -> None:
        self._keeps: Final = keeps
        self._client: Final = client
        self._chance: Final = chance
        self._names: Final = names
        self._units: Final = units
        self._made = set[str]()

    async def work(self) -> None:
        """Do some of each unit, until it is closed by this client or another one."""
        with suppress(*CUT_OFF):
            for unit in self._units:
                seen: dict[str, frozenset[str]] = {}
                self._made = set[str]()
                for _ in range(self._chance.randint(3, 7)):
                    if not await self._turn(unit, seen, is_closing=False):
                        break
                else:
                    await self._turn(unit, seen, is_closing=True)

    async def _turn(self, unit: str, seen: dict[str, frozenset[str]], *, is_closing: bool) -> bool:
        """Do one thing and return whether the unit is still open to more."""
        name = self._chance.choice(self._names)
        bases = seen.get(name, frozenset())
        strategy = self._chance.choice(("merge", "merge", "mvcc", "reject"))
        more = {"strategy": strategy, "unit": unit, "is_closing": is_closing}
        value = {"text": f"leaf {self._chance.randrange(1000)}", "n": 0}
        draw = self._chance.random()
        if draw < 0.4 and not is_closing:
            done = await self._client.read(name, unit=unit)
        elif not bases:
            done = await self._client.create(name, value, **more)
            self._made.add(name)
        elif draw < 0.85 or is_closing or (self._keeps and name in self._made):
            done = await self._client.update(name, bases, value, **more)
        else:
            done = await self._client.delete(name, bases, **more)
        match done.outcome:
            case Accepted(version=version):
                seen[name] = frozenset([version])
            case Shown() as shown:
                seen[name] = shown.heads
            case Conflict(heads):
                seen[name] = heads
            case Refused() | None:
                return False
            case _:
                pass
        return True


async def work_in_units(
    endpoint: Path,
    recorder: Recorder,
    chance: Random,
    *,
    units: int = 6,
    names: int = 3,
    user: str = "mira",
    prefix: str = "u",
    is_cut_off: bool = False,
) -> None:
    """Let members of units, writers and readers outside of them, and a subscriber work at once.

    Two members share each second unit.
    """
    entities = [f"m-{number}" for number in range(names)]
    follower = await recorder.connect(endpoint, user)
    following = asyncio.ensure_future(follower.follow())
    everybody = [await recorder.connect(endpoint, user) for _ in range(6)]
    one, other, *outside = everybody
    all_units = [f"{prefix}-{number}" for number in range(units)]
    members = [
        UnitWorker(client, _child(chance), entities, some, keeps=is_cut_off)
        for client, some in ((one, all_units), (other, all_units[::2]))
    ]
    writers = [Worker(client, _child(chance), entities) for client in outside[:2]]
    await asyncio.gather(
        *(member.work() for member in members),
        *(writer.work(4 * units) for writer in writers),
        *(look_around(client, entities, 4 * units) for client in outside[2:]),
    )
    for client in everybody:
        await client.close()
    await follower.close()
    await following


async def look_around(client: Client, names: list[str], turns: int) -> None:
    """Read the entities one after the other, and list them, again and again."""
    with suppress(*CUT_OFF):
        for turn in range(turns):
            await client.read(names[turn % len(names)])
            if turn % len(names) == 0:
                await client.list()


def _child(chance: Random) -> Random:
    return type(chance)(chance.random())


async def work_at_once(
    endpoint: Path,
    recorder: Recorder,
    chance: Random,
    *,
    clients: int = 5,
    turns: int = 25,
    names: int = 2,
    type_: str = "memo",
    with_sessions: bool = False,
    user: str = "mira",
) -> None:
    """Let several clients work until all are done, or cut off; two of them share a session."""
    connected = [await recorder.connect(endpoint, user) for _ in range(clients)]
    entities = [f"m-{number}" for number in range(names)]
    tokens: list[str] = []  # of all: they tell each other
    workers = [
        Worker(client, _child(chance), entities, type_, tokens=tokens) for client in connected
    ]
    sessions = [f"s-{number // 2}" if with_sessions else None for number in range(clients)]
    await asyncio.gather(
        *(worker.work(turns, session=name) for worker, name in zip(workers, sessions, strict=True))
    )
    for client in connected:
        await client.close()
