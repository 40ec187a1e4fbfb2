"""Daemons that the client starts, and what it says when there is none."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import subprocess
import sys
from dataclasses import replace
from fcntl import LOCK_EX
from fcntl import flock as lock_file
from pathlib import Path
from typing import Any

import pytest
from patchouli.server.testing import params
from patchouli.storage_client import (
    ClientConfig,
    DaemonStartError,
    DaemonUnavailable,
    MalformedAnswerError,
    StartupTimeoutError,
    StorageClient,
    launcher,
)

SCRIPT = """
import asyncio, os, sys
from patchouli.storage_client import ClientConfig, StorageClient

async def main():
    config = ClientConfig(command=sys.argv[1], startup_timeout_ms=20000)
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    async with StorageClient(config) as client:
        status = await client.status()
        print(status["data"]["pid"], status["data"]["generation"], flush=True)

asyncio.run(main())
"""


def script(folder: Path, text: str) -> str:
    """Return an executable that does what `text` says."""
    path = folder / "command"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.slow
async def test_a_daemon_is_started_with_a_new_home_and_outlives_its_client(empty_home: Any) -> None:
    async with StorageClient(empty_home.config) as client:
        status = (await client.status())["data"]
    async with StorageClient(replace(empty_home.config, auto_start=False)) as client:
        again = (await client.status())["data"]

    assert again["pid"] == status["pid"] != os.getpid()
    assert again["generation"] == 1
    assert os.getsid(status["pid"]) == status["pid"]


@pytest.mark.slow
async def test_a_lost_daemon_is_started_again(empty_home: Any) -> None:
    client = StorageClient(empty_home.config)
    await client.start()
    first = (await client.status())["data"]
    subscription = await client.subscribe(params({}), lambda _: None)

    os.kill(first["pid"], 9)
    close = await subscription.wait_closed()
    await asyncio.gather(client.start(), client.start())
    second = (await client.status())["data"]
    await client.close()

    assert close.kind == "connection-lost"
    assert second["pid"] != first["pid"]
    assert second["recovered_after_unclean_shutdown"] is True


@pytest.mark.slow
async def test_a_daemon_that_is_just_ending_is_replaced(empty_home: Any) -> None:
    """Its socket is gone and its lock is not, so that the first one that is started gives up."""
    empty_home.lock.parent.mkdir(parents=True, mode=0o700)
    empty_home.root.chmod(0o700)
    client = StorageClient(empty_home.config)
    with empty_home.lock.open("wb") as lock:
        lock_file(lock, LOCK_EX)
        empty_home.lock.chmod(0o600)
        start = asyncio.ensure_future(client.start())
        while not (launcher._started and launcher._started[-1].poll()):  # noqa: ASYNC110 -- a process
            await asyncio.sleep(0.01)
        first = launcher._started[-1].pid

    await start
    second = (await client.status())["data"]["pid"]
    await client.close()

    assert second != first


@pytest.mark.slow
def test_two_processes_that_start_at_once_use_one_daemon(empty_home: Any, command: str) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SCRIPT, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    told = [starter.communicate(timeout=50) for starter in starters]

    assert [err for _, err in told] == [""] * 3
    daemons = {out for out, _ in told}
    assert len(daemons) == 1
    assert daemons.pop().split()[1] == "1"


@pytest.mark.slow
async def test_two_clients_of_a_process_that_start_at_once_use_one_daemon(empty_home: Any) -> None:
    clients = [StorageClient(empty_home.config) for _ in range(3)]

    await asyncio.gather(*(client.start() for client in clients))
    pids = {(await client.status())["data"]["pid"] for client in clients}
    await asyncio.gather(*(client.close() for client in clients))

    assert len(pids) == 1


@pytest.mark.checklist("MS-74")
async def test_a_command_that_is_not_there_cannot_be_started(folder: Path) -> None:
    config = ClientConfig(endpoint=str(folder / "nobody"), command=str(folder / "no-such"))
    client = StorageClient(config)

    with pytest.raises(DaemonStartError) as caught:
        await client.start()

    assert caught.value.command == str(folder / "no-such")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert "patchouli-server" in str(caught.value)
    assert client.state == "closed"


async def test_a_daemon_that_ends_at_once_is_told_in_the_timeout(folder: Path) -> None:
    config = ClientConfig(
        endpoint=str(folder / "nobody"),
        command=script(folder, "exit 7"),
        startup_timeout_ms=300,
    )

    with pytest.raises(StartupTimeoutError) as caught:
        await StorageClient(config).start()

    assert caught.value.exit_code == 7
    assert "300 ms" in str(caught.value)
    assert caught.value.command[:4] == (config.command, "serve", "--endpoint", config.endpoint)
    assert f"7, and this says why: {shlex.join(caught.value.command)}" in str(caught.value)
    assert isinstance(caught.value.__cause__, DaemonUnavailable)


async def test_the_command_gets_the_four_places_and_nothing_of_ours(folder: Path) -> None:
    told = folder / "told"
    config = ClientConfig(
        endpoint=str(folder / "nobody"),
        command=script(
            folder,
            f'for one in "$@"; do echo "$one"; done > {told}.part\n'
            f"ls /proc/$$/fd >> {told}.part 2>/dev/null\n"
            f"mv {told}.part {told}",
        ),
        artifact_root_path=str(folder / "bytes"),
        provider_config_path=str(folder / "providers.json"),
        backend_config_path=str(folder / "config.json"),
        startup_timeout_ms=400,
    )

    with pytest.raises(StartupTimeoutError) as caught:
        await StorageClient(config).start()

    assert list(caught.value.command[1:]) == told.read_text(encoding="utf-8").splitlines()[:9]
    assert told.read_text(encoding="utf-8").splitlines()[:9] == [
        "serve",
        "--endpoint",
        str(folder / "nobody"),
        "--artifacts",
        str(folder / "bytes"),
        "--providers",
        str(folder / "providers.json"),
        "--config",
        str(folder / "config.json"),
    ]


async def test_close_ends_the_wait_for_a_daemon(folder: Path) -> None:
    begun = folder / "begun"
    config = ClientConfig(
        endpoint=str(folder / "nobody"),
        command=script(folder, f"touch {begun}"),
        startup_timeout_ms=60_000,
    )
    client = StorageClient(config)
    start = asyncio.ensure_future(client.start())
    while not begun.exists():  # noqa: ASYNC110 -- a file tells nobody
        await asyncio.sleep(0.01)

    await client.close()

    (error,) = await asyncio.gather(start, return_exceptions=True)
    assert type(error).__name__ == "ClientClosedError"
    assert client.state == "closed"


async def test_what_answers_and_is_no_daemon_is_not_asked_again(raw: Any) -> None:
    client = StorageClient(replace(raw.config, auto_start=True, command="not-run"))
    start = asyncio.ensure_future(client.start())
    peer = await raw.accept()

    peer.send_bytes(b"220 mail.example ready\n")

    with pytest.raises(MalformedAnswerError):
        await start
    assert raw.connections == 1


@pytest.mark.slow
async def test_the_default_command_is_found_beside_the_interpreter(
    empty_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    config = ClientConfig(startup_timeout_ms=20_000)
    assert config.command == "patchouli-db"

    async with StorageClient(config) as client:
        assert (await client.status())["data"]["ready"] is True
