"""What clients do to a scope at once, so that there is something to check.

Every client does one thing after the other and takes its bases from what it was told last, so it is
often late. Few entities make them meet.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tests.histories.history import Accepted, Conflict, Shown

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random  # noqa: TID251 - what a seeded one is

    from tests.histories.history import Operation
    from tests.histories.recording import Client, Recorder

CUT_OFF: Final = (EOFError, ConnectionError)


class Worker:
    """A client that mutates a few entities of one type, whatever the others do."""

    def __init__(self, client: Client, chance: Random, names: list[str], type_: str) -> None:
        self._client: Final = client
        self._chance: Final = chance
        self._names: Final = names
        self._type: Final = type_
        self._seen: Final[dict[str, frozenset[str]]] = {}
        self._token: str | None = None

    async def work(self, turns: int, *, session: str | None = None) -> None:
        """Do so many things, or fewer if the connection ends."""
        with suppress(*CUT_OFF):
            for _ in range(turns):
                await self._turn(session)

    async def _turn(self, session: str | None) -> None:
        name = self._chance.choice(self._names)
        bases = self._seen.get(name, frozenset())
        draw = self._chance.random()
        after = (self._token,) if self._token is not None and draw < 0.2 else ()
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
            self._token = done.token
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
) -> None:
    """Let several clients work until all are done, or cut off; two of them share a session."""
    connected = [await recorder.connect(endpoint) for _ in range(clients)]
    workers = [
        Worker(client, type(chance)(chance.random()), [f"m-{n}" for n in range(names)], type_)
        for client in connected
    ]
    sessions = [f"s-{number // 2}" if with_sessions else None for number in range(clients)]
    await asyncio.gather(
        *(worker.work(turns, session=name) for worker, name in zip(workers, sessions, strict=True))
    )
    for client in connected:
        await client.close()
