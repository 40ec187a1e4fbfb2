"""SIGTERM while many write or wait: what was answered is true, and the end is a clean one."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from random import Random  # noqa: TID251 - seeded, and the seed is printed
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.protocol import CREATE, READ, STATUS, SUBSCRIBE, SUBSCRIPTION_CLOSED
from patchouli.provider_sqlite.testing import check_index, check_truth
from patchouli.server.testing import DaemonProcess, Peer

from tests.crash.account import USERS, Account, create_counted_home, meta_of
from tests.crash.audit import check_daemon, check_database, read_status
from tests.crash.extent import ROUNDS, SEED, say_seed
from tests.crash.writing import connect_writers

if TYPE_CHECKING:
    from pathlib import Path

MOST_ANSWERS = 3000
EMPTY: dict[str, Any] = {"meta": {}, "data": {}}


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * ROUNDS)
async def test_a_stop_while_many_write_tells_the_truth_and_is_clean(folder: Path) -> None:
    say_seed()
    chance = Random(SEED)  # noqa: S311 - see above
    home = create_counted_home(folder / "home")
    database = home / "data" / "patchouli.db"
    account = Account()
    for number in range(ROUNDS):
        before = len(account.attempts)
        # Every other time nobody waits for what was begun.
        patience = {"PATCHOULI_DRAIN_MS": "0"} if number % 2 else {}
        with DaemonProcess(home, environment=patience) as daemon:
            status = await read_status(daemon.endpoint)
            assert status["generation"] == 2 * number + 1
            await write_until_stopped(daemon, account, chance)
            assert daemon.wait() == 0
            assert daemon.output == [], "a stop is nothing to speak of"
        assert not check_database(database, account).is_running
        check_index(database, folder / f"rebuilt-{number}")
        with DaemonProcess(home) as again:
            status = await read_status(again.endpoint)
            assert status["recovered_after_unclean_shutdown"] is False
            assert status["generation"] == 2 * number + 2
            await check_daemon(again.endpoint, account, attempts=account.attempts[before:])


async def write_until_stopped(daemon: DaemonProcess, account: Account, chance: Random) -> None:
    """Let many write, and send SIGTERM after some answer."""
    answers_left = chance.randrange(1, MOST_ANSWERS)

    def count() -> None:
        nonlocal answers_left
        answers_left -= 1
        if answers_left == 0:
            daemon.process.send_signal(signal.SIGTERM)

    writers = await connect_writers(daemon.endpoint, account, chance, on_told=count)
    await asyncio.gather(*(writer.lost for writer in writers))
    assert answers_left <= 0, "the daemon ended before it was asked to"


@pytest.mark.slow
async def test_who_only_waits_does_not_delay_the_end(folder: Path) -> None:
    home = create_counted_home(folder / "home")
    # If anybody here used the drain up, the daemon would outlive the patience of `wait`.
    with DaemonProcess(home, environment={"PATCHOULI_DRAIN_MS": "600000"}) as daemon:
        async with AsyncExitStack() as connections:
            idle = [
                await connections.enter_async_context(await Peer.connect(daemon.endpoint))
                for _ in range(32)
            ]
            watching = [
                await connections.enter_async_context(
                    await Peer.connect(
                        daemon.endpoint, capabilities=["subscriptions", "subscription-lifecycle"]
                    )
                )
                for _ in range(32)
            ]
            for number, peer in enumerate(watching):
                meta = meta_of(USERS[number % len(USERS)])
                await peer.result(SUBSCRIBE, {"meta": meta, "data": {}})
            daemon.process.send_signal(signal.SIGTERM)
            for peer in watching:
                closed = await peer.notification()
                assert closed["method"] == SUBSCRIPTION_CLOSED
                assert closed["params"]["data"]["reason"] == "SERVER_STOPPING"
            assert all([await peer.is_closed() for peer in (*idle, *watching)])
        assert daemon.wait() == 0
    check_truth(home / "data" / "patchouli.db")


@pytest.mark.slow
async def test_who_does_not_read_delays_the_end_by_the_drain_at_most(folder: Path) -> None:
    home = create_counted_home(folder / "home")
    with DaemonProcess(home, environment={"PATCHOULI_DRAIN_MS": "100"}) as daemon:
        async with await Peer.connect(daemon.endpoint) as deaf:
            value = {"text": "x" * 500_000}
            data = {"type": "memo", "id": "large", "value": value}
            await deaf.result(CREATE, {"meta": meta_of("mira"), "data": data})
            deaf.pause_reading()
            ref = {"ref": {"type": "memo", "id": "large"}}
            for _ in range(60):
                deaf.send(READ, {"meta": meta_of("mira"), "data": ref})
            async with await Peer.connect(daemon.endpoint) as other:
                await other.result(STATUS, EMPTY)
            daemon.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.wait) == 0
    with DaemonProcess(home) as again:
        status = await read_status(again.endpoint)
        assert status["recovered_after_unclean_shutdown"] is False
