"""The daemon as a process: its signals, its output, its crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from patchouli.protocol import CREATE, READ, STATUS, SUBSCRIBE
from patchouli.server.testing import DaemonProcess, Peer, memo, params, ref

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # each starts processes

EMPTY = {"meta": {}, "data": {}}


@pytest.mark.scenario(1)
def test_the_ready_line_is_the_only_output_of_a_good_start(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "patchouli.server", "serve"],
        env={**os.environ, "PATCHOULI_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("Patchouli"):
            break
    process.terminate()
    stdout, rest = process.communicate(timeout=30)

    assert lines[-1] == f"Patchouli daemon listening on {home}/run/patchouli.sock\n"
    assert all(line.startswith("warning: ") for line in lines[:-1])
    assert stdout == ""
    assert rest == ""
    assert process.returncode == 0


async def status_of(daemon: DaemonProcess) -> dict[str, object]:
    async with await Peer.connect(daemon.endpoint) as peer:
        return (await peer.result(STATUS, EMPTY))["data"]


@pytest.mark.scenario(14)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order_with_clients_connected(
    home: Path, number: signal.Signals
) -> None:
    with DaemonProcess(home) as daemon:
        async with (
            await Peer.connect(daemon.endpoint) as idle,
            await Peer.connect(daemon.endpoint, capabilities=["subscriptions"]) as watcher,
        ):
            await watcher.result(SUBSCRIBE, params({}))
            daemon.process.send_signal(number)
            assert await idle.is_closed()
            assert await watcher.is_closed()
        code = await asyncio.to_thread(daemon.wait)
    with DaemonProcess(home) as again:
        status = await status_of(again)

    assert code == 0
    assert not daemon.endpoint.exists()
    assert status["recovered_after_unclean_shutdown"] is False


async def test_a_hang_up_is_ignored(home: Path) -> None:
    with DaemonProcess(home) as daemon:
        daemon.process.send_signal(signal.SIGHUP)

        assert (await status_of(daemon))["ready"] is True


@pytest.mark.clause("entity.durable")
@pytest.mark.scenario(14)
async def test_a_kill_is_noticed_at_the_next_start_and_loses_nothing(home: Path) -> None:
    with DaemonProcess(home) as daemon:
        async with await Peer.connect(daemon.endpoint) as peer:
            for number in range(20):
                await peer.result(CREATE, params(memo(f"m-{number}")))
        daemon.kill()
        assert daemon.endpoint.exists()
    with DaemonProcess(home) as again:
        status = await status_of(again)
        async with await Peer.connect(again.endpoint) as peer:
            kept = [await peer.result(READ, params(ref(f"m-{number}"))) for number in range(20)]

    assert status["recovered_after_unclean_shutdown"] is True
    assert status["generation"] == 2
    assert [entity["data"]["variants"][0]["value"]["text"] for entity in kept] == [
        f"m-{number}" for number in range(20)
    ]


@pytest.mark.scenario(15)
async def test_a_signal_in_the_middle_of_writing_leaves_answers_and_effects_agreeing(
    home: Path,
) -> None:
    answered: list[int] = []
    with DaemonProcess(home) as daemon:
        async with await Peer.connect(daemon.endpoint) as peer:
            for number in range(2000):
                peer.send(CREATE, params(memo(f"m-{number}")), request_id=number)
            answered.append((await peer.response())["id"])
            daemon.process.terminate()
            try:
                while True:
                    answer = await peer.response()
                    if "result" in answer:
                        answered.append(answer["id"])
            except (EOFError, ConnectionError):
                pass
        assert await asyncio.to_thread(daemon.wait) == 0
    with DaemonProcess(home) as again:
        async with await Peer.connect(again.endpoint) as peer:
            there = [
                number
                for number in range(2000)
                if "result" in await peer.call(READ, params(ref(f"m-{number}")))
            ]

    assert there == answered


async def test_a_second_signal_does_not_wait_for_a_client_that_does_not_read(home: Path) -> None:
    environment = {"PATCHOULI_DRAIN_MS": "600000"}
    with DaemonProcess(home, environment=environment) as daemon:
        async with await Peer.connect(daemon.endpoint) as peer:
            await peer.result(CREATE, params(memo("m", {"text": "x" * 500_000})))
            peer.pause_reading()
            for _ in range(50):
                peer.send(READ, params(ref("m")))
            async with await Peer.connect(daemon.endpoint) as other:
                await other.result(STATUS, EMPTY)
                daemon.process.terminate()
                assert await other.is_closed()
                assert daemon.process.poll() is None
                daemon.process.terminate()
                code = await asyncio.to_thread(daemon.wait)

    assert code == 0
