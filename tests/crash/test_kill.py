"""Kill -9 in the middle of 64 writing connections: nothing acknowledged is lost, nothing is twice.

The rounds follow each other on one home, so later ones also recover what earlier ones left; after
some of them another home begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import threading
from random import Random  # noqa: TID251 - seeded, and the seed is printed
from typing import TYPE_CHECKING

import pytest
from patchouli.provider_sqlite.testing import check_index, check_truth
from patchouli.server.testing import DaemonProcess

from tests.crash.account import USERS, Account, create_counted_home
from tests.crash.audit import (
    Follower,
    check_daemon,
    check_database,
    read_log,
    read_status,
    with_index,
)
from tests.crash.extent import ROUNDS, SEED, say_seed
from tests.crash.uploading import check_uploads, upload_until_cut_off
from tests.crash.writing import connect_writers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from patchouli.provider_sqlite.testing import Contents

    from tests.crash.audit import Told

ROUNDS_OF_A_HOME = 10
MOST_ANSWERS = 4000
OLDER_WORDS = 200  # of earlier rounds that are looked for again


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_a_kill_while_many_write_loses_nothing_and_doubles_nothing(folder: Path) -> None:
    say_seed()
    chance = Random(SEED)  # noqa: S311 - see above
    for first in range(0, ROUNDS, ROUNDS_OF_A_HOME):
        home = create_counted_home(folder / f"home-{first}")
        await kill_again_and_again(
            home, chance, range(first, min(ROUNDS, first + ROUNDS_OF_A_HOME))
        )
        shutil.rmtree(home)


async def kill_again_and_again(home: Path, chance: Random, rounds: range) -> None:
    account = Account()
    followers = [Follower(user) for user in USERS]
    for number in rounds:
        before = len(account.attempts)
        is_stopping = chance.random() < 0.2
        with DaemonProcess(home) as daemon:
            await write_until_killed(daemon, account, followers, chance, is_stopping=is_stopping)
        if chance.random() < 0.3:
            kill_at_start(home, chance.random() * 0.4)
        killed = check_files(home, account, is_new=number == rounds.start)
        assert killed.is_running or is_stopping, "the run is recorded as not ended"
        with DaemonProcess(home) as daemon:
            status = await read_status(daemon.endpoint)
            assert status["recovered_after_unclean_shutdown"] is killed.is_running
            assert status["generation"] == killed.generation + 1
            older = account.attempts[:before]
            sample = chance.sample(older, min(OLDER_WORDS, len(older)))
            log = await check_daemon(
                daemon.endpoint, account, attempts=[*sample, *account.attempts[before:]]
            )
            await check_uploads(daemon.endpoint, account)
            assert not list((home / "data" / "artifacts" / "uploads").iterdir())
            for follower in followers:
                await catch_up(daemon.endpoint, follower, log)
        report(number, account, before)
    check_database(home / "data" / "patchouli.db", account)


async def write_until_killed(
    daemon: DaemonProcess,
    account: Account,
    followers: Sequence[Follower],
    chance: Random,
    *,
    is_stopping: bool,
) -> None:
    """Let many write, one upload and four follow; kill the daemon a moment after some answer.

    One that is stopping is asked to end first, and killed while it does so.
    """
    answers_left = chance.randrange(1, MOST_ANSWERS)
    killer = threading.Timer(chance.random() * (0.3 if is_stopping else 0.02), daemon.process.kill)

    def count() -> None:
        nonlocal answers_left
        answers_left -= 1
        if answers_left == 0:
            if is_stopping:
                daemon.process.terminate()
            killer.start()

    following = [asyncio.ensure_future(follower.follow(daemon.endpoint)) for follower in followers]
    writers = await connect_writers(daemon.endpoint, account, chance, on_told=count)
    uploading = upload_until_cut_off(daemon.endpoint, account)
    await asyncio.gather(*(writer.lost for writer in writers), *following, uploading)
    assert answers_left <= 0, "the daemon ended before it was killed"
    killer.join()
    daemon.kill()


def kill_at_start(home: Path, seconds: float) -> None:
    """Kill a daemon that is recovering from the kill before, if it is not ready sooner."""
    daemon = DaemonProcess(home)
    killer = threading.Timer(seconds, lambda: daemon.process.kill())
    killer.start()
    with contextlib.suppress(RuntimeError):
        daemon.start()
    killer.join()
    daemon.kill()
    assert daemon.process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * ROUNDS)
async def test_a_kill_at_any_moment_of_the_first_start_leaves_a_home_that_starts(
    folder: Path,
) -> None:
    say_seed()
    chance = Random(SEED)  # noqa: S311 - see above
    for number in range(2 * ROUNDS):
        home = folder / f"home-{number}"
        kill_at_start(home, chance.random() * 1.5)
        with DaemonProcess(home) as daemon:
            assert (await read_status(daemon.endpoint))["ready"] is True
        check_truth(home / "data" / "patchouli.db")


def check_files(home: Path, account: Account, *, is_new: bool) -> Contents:
    """Check a copy of what the kill left, and return what it holds.

    The index of a new home may not have come to its first transaction.
    """
    copy = shutil.copytree(home / "data", home.with_name("killed"))
    try:
        contents = check_database(copy / "patchouli.db", account)
        (with_index if is_new else check_index)(copy / "patchouli.db", copy / "rebuilt")
    finally:
        shutil.rmtree(copy)
    return contents


async def catch_up(endpoint: Path, follower: Follower, log: Sequence[Told]) -> None:
    """Let a follower go on from where it was cut off to the end of the log."""
    whole = [told for told in log if told.key.user == follower.user]
    follower.changes += await read_log(
        endpoint, follower.user, after=follower.position, until=whole[-1].attempt
    )
    assert follower.changes == whole, "a resumed subscription tells every change once, in order"


def report(number: int, account: Account, before: int) -> None:
    recent = account.attempts[before:]
    accepted = sum(attempt.version is not None for attempt in recent)
    refused = sum(attempt.refusal is not None for attempt in recent)
    print(  # noqa: T201 - a report for who runs many rounds
        f"round {number + 1}: {accepted} accepted, {refused} refused, "
        f"{len(recent) - accepted - refused} unanswered; {len(account.attempts)} in all"
    )
