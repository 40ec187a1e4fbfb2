"""Disks that fail and forget while units, identities and sessions are at work.

What was answered is kept whatever the disk does, a unit is there as a whole or not at all, and
whoever repeats a request with its identity gets the same answer and does not do it again.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import asynccontextmanager, suppress
from itertools import count
from random import Random  # noqa: TID251 - seeded
from typing import TYPE_CHECKING, Any, Final

import pytest
from patchouli.provider import ProviderError
from patchouli.provider_sqlite import IndexLimits, SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.connection import open_writer
from patchouli.provider_sqlite.testing import IO_FAILURE, FaultyDisk, ForgetfulDisk, check_truth
from patchouli.server import assemble
from patchouli.server.settings import CommandError
from patchouli.server.testing import DaemonProcess, serving, settings_of

from tests.crash.audit import with_index
from tests.crash.extent import ROUNDS, SEED, say_seed
from tests.crash.promises import check_history, check_kept, play
from tests.histories.recording import Recorder, create_recorded_home, read_changes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from patchouli.provider_sqlite import Disk
    from patchouli.server.testing import Served

# So short that the log is emptied and begun anew several times during the script.
LIMITS: Final = SqliteLimits(log_pages_soft=20, log_pages_turn=30, log_pages_hard=40)
# Reads fail elsewhere (`test_failing_disk.py`).
CHANGING: Final = {kind: error for kind, error in IO_FAILURE.items() if kind != "read"}
STEP: Final = 1 if ROUNDS >= 10 else 97  # from one failing call to the next
ANSWERS: Final = 30  # of the script, or a few more
STEP_OF_ANSWERS: Final = 1 if ROUNDS >= 10 else 6  # from one image to the next
INDEX_LIMITS: Final = IndexLimits(gather_seconds=0.001, retry_seconds=0.001)


@pytest.fixture
def pattern(folder: Path) -> Path:
    return create_recorded_home(folder / "pattern")


@asynccontextmanager
async def serving_on(home: Path, disk: Disk) -> AsyncGenerator[Served]:
    """Yield a daemon whose store is on a disk of its own."""
    with pytest.MonkeyPatch.context() as patch:

        def open_store(*_: Any) -> SqliteProvider:
            database = home / "data" / "patchouli.db"
            return SqliteProvider(database, limits=LIMITS, index_limits=INDEX_LIMITS, disk=disk)

        patch.setattr(assemble, "_open_store", open_store)
        async with serving(settings_of(home)) as served:
            yield served


async def test_the_script_does_what_it_says(pattern: Path) -> None:
    recorder = Recorder()
    async with serving(settings_of(pattern)) as served:
        await play(served.endpoint, recorder)
        changes = await read_changes(served.endpoint, recorder)

    check_history(recorder, changes)
    assert {change.unit for change in changes} == {None, "u-peace", "u-drift"}
    open_ = [operation for operation in recorder.operations if operation.outcome is None]
    assert [operation.unit for operation in open_] == ["u-refused"]
    await check_kept(pattern, recorder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "from then on"])
async def test_any_call_of_the_disk_may_fail(
    folder: Path, pattern: Path, *, is_lasting: bool
) -> None:
    say_seed()
    for number in count(SEED % STEP, STEP):
        home = shutil.copytree(pattern, folder / str(number))
        disk = FaultyDisk(CHANGING, concerned=lambda call: "-index" not in call.path)
        recorder = Recorder()
        async with serving_on(home, disk.disk) as served:
            disk.fail(at=number, is_lasting=is_lasting)
            await play(served.endpoint, recorder)
            failed = list(disk.failed)
            disk.mend()
        disk.close()
        check_files(home)
        await check_kept(home, recorder)
        check_files(home)
        shutil.rmtree(home)
        if not failed:
            assert number > 100
            return


class Camera:
    """A recorder that takes an image of the disk at every answer, and what had been told."""

    def __init__(self, folder: Path, pattern: Path) -> None:
        self.disk: Final = ForgetfulDisk()
        self.recorder: Final = Recorder(on_answer=self._take)
        self.images: Final[list[tuple[Path, Recorder]]] = []
        self._folder: Final = folder
        self._pattern: Final = pattern
        self._chance: Final = Random(SEED)  # noqa: S311 - what survives
        self._answers = 0

    def _take(self) -> None:
        self._answers += 1
        if self._answers % STEP_OF_ANSWERS == SEED % STEP_OF_ANSWERS:
            self._leave("nothing", chances=(0.0,))
            self._leave("something", chances=(0.0, 0.5, 1.0))

    def _leave(self, name: str, *, chances: tuple[float, ...]) -> None:
        home = shutil.copytree(
            self._pattern, self._folder / f"{self._answers}-{name}", ignore=_without_store
        )
        left = home / "left"
        self.disk.lose_power(left, survives=lambda _: self._chance.choice(chances))
        for path in left.iterdir():
            shutil.move(path, home / "data")
        left.rmdir()
        self.images.append((home, self.recorder.copy()))


def _without_store(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("patchouli.")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_power_loss_at_any_answer_keeps_every_promise(folder: Path, pattern: Path) -> None:
    say_seed()
    camera = Camera(folder, pattern)
    home = shutil.copytree(pattern, folder / "home")
    async with serving_on(home, camera.disk.disk) as served:
        await play(served.endpoint, camera.recorder)
    camera.disk.close()

    assert camera.images
    for image, recorder in camera.images:
        check_files(image)
        await check_kept(image, recorder)
        check_files(image)
        shutil.rmtree(image)


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * ROUNDS)
async def test_a_kill_after_any_answer_keeps_every_promise(folder: Path, pattern: Path) -> None:
    say_seed()
    chance = Random(SEED)  # noqa: S311 - when it comes
    for number in range(2 * ROUNDS):
        home = shutil.copytree(pattern, folder / str(number))
        answers_left = chance.randrange(1, ANSWERS)
        with DaemonProcess(home) as daemon:
            killer = threading.Timer(chance.random() * 0.01, daemon.process.kill)

            def count_answer(killer: threading.Timer = killer) -> None:
                nonlocal answers_left
                answers_left -= 1
                if answers_left == 0:
                    killer.start()

            recorder = Recorder(on_answer=count_answer)
            with suppress(EOFError, ConnectionError):
                await play(daemon.endpoint, recorder)
            killer.join()
            daemon.kill()
        check_files(home)
        await check_kept(home, recorder)
        check_files(home)
        shutil.rmtree(home)


@pytest.mark.slow
async def test_with_fewer_syncs_a_promise_is_broken(
    folder: Path, pattern: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_careless(*arguments: Any, **settings: Any) -> Any:
        connection = open_writer(*arguments, **settings)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    camera = Camera(folder, pattern)
    home = shutil.copytree(pattern, folder / "home")
    with monkeypatch.context() as patch:
        patch.setattr("patchouli.provider_sqlite.store.open_writer", open_careless)
        async with serving_on(home, camera.disk.disk) as served:
            await play(served.endpoint, camera.recorder)
    camera.disk.close()

    broken = 0
    for image, recorder in camera.images:
        try:
            await check_kept(image, recorder)
        except (AssertionError, CommandError, ProviderError):
            broken += 1
    assert broken


def check_files(home: Path) -> None:
    """Hold the files of a home at rest to the invariants."""
    database = home / "data" / "patchouli.db"
    check_truth(database)
    with_index(database, home / "rebuilt")
    shutil.rmtree(home / "rebuilt", ignore_errors=True)
