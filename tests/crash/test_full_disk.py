"""A full disk: writes are refused in clear words, reads go on, and with room everything goes on.

The daemon runs on a file system of its own, a few megabytes large, which takes the right to mount.
Where that is missing, a disk of SQLite's that has no room stands in for it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from functools import partial
from random import Random  # noqa: TID251 - seeded, and the seed is written below
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.protocol import (
    CHECKPOINT,
    CREATE,
    DELETE,
    READ,
    RETRIEVE,
    STATUS,
    SUBSCRIBE,
    UPDATE,
    UPLOAD_BEGIN,
    UPLOAD_CHUNK,
    encode_chunk,
)
from patchouli.provider_sqlite import SqliteProvider
from patchouli.provider_sqlite.testing import DISK_FULL, FaultyDisk, check_truth
from patchouli.server.testing import (
    ARTIFACT_METADATA,
    DaemonProcess,
    Peer,
    serving,
    settings_of,
)

from tests.crash.account import Account, Key, create_counted_home, meta_of
from tests.crash.audit import check_daemon, read_status
from tests.crash.writing import connect_writers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEGABYTE = 1 << 20
EMPTY: dict[str, Any] = {"meta": {}, "data": {}}


class SmallDisk:
    """A mounted file system that can be filled to its last byte, and given room again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (MEGABYTE, 4096, 1):
                block = b"x" * size
                try:
                    while file.write(block) == size:
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(folder: Path) -> Iterator[SmallDisk]:
    root = folder / "disk"
    root.mkdir()
    if sys.platform != "linux":
        pytest.skip("mounts a tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "tmpfs", str(root)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr.strip()}")
    yield SmallDisk(root)
    subprocess.run(["umount", str(root)], check=True)


async def create(peer: Peer, account: Account, key: Key) -> dict[str, Any]:
    attempt = account.attempt(account.new_peer(), CREATE, key)
    value = {"text": f"a leaf {attempt.word}", "tag": attempt.word}
    data = {"type": key.type, "id": key.id, "value": value}
    answer = await peer.call(
        CREATE, {"meta": meta_of(key.user, attempt=attempt.number), "data": data}
    )
    account.settle(attempt, answer)
    return answer


def require_no_room(answer: dict[str, Any]) -> None:
    assert answer["error"]["code"] == -32009
    assert answer["error"]["data"] == {"reason": "OVERLOADED", "retryable": True}
    assert "no room left" in answer["error"]["message"]


async def require_reads(peer: Peer, account: Account) -> None:
    """Every kind of read is served, and tells what was acknowledged."""
    for attempt in account.told:
        if attempt.version is None:
            continue
        meta = meta_of(attempt.key.user)
        ref = {"type": attempt.key.type, "id": attempt.key.id}
        read = await peer.result(READ, {"meta": meta, "data": {"ref": ref}})
        assert [variant["version"] for variant in read["data"]["variants"]] == [attempt.version]
        for query in ({"text": attempt.word}, {"where": {"/tag": attempt.word}}):
            found = await peer.result(
                RETRIEVE, {"meta": meta, "data": {"query": json.dumps(query)}}
            )
            hits = found["data"]["hits"]
            assert [hit["variants"][0]["version"] for hit in hits] == [attempt.version]
    assert (await peer.result(STATUS, EMPTY))["data"]["ready"] is True
    await peer.result(SUBSCRIBE, {"meta": meta_of("mira"), "data": {"after_cursor": "0"}})


async def require_refusals(peer: Peer, account: Account) -> None:
    """Every kind of write is refused, and says why."""
    held = account.told[0]
    meta = meta_of(held.key.user, base_versions=[held.version])
    ref = {"type": held.key.type, "id": held.key.id}
    for number in range(3):
        key = Key("mira", "memo", f"refused-{number}")
        require_no_room(await create(peer, account, key))
    require_no_room(
        await peer.call(UPDATE, {"meta": meta, "data": {"ref": ref, "value": {"text": "no"}}})
    )
    require_no_room(await peer.call(DELETE, {"meta": meta, "data": {"ref": ref}}))


async def require_no_upload(peer: Peer) -> None:
    begin = {"id": None, "media_type": "a/b", "name": None, "metadata": ARTIFACT_METADATA}
    answer = await peer.call(UPLOAD_BEGIN, {"meta": meta_of("mira"), "data": begin})
    if "result" in answer:  # an empty file may still have found a place
        chunk = {
            "upload_id": answer["result"]["data"]["upload_id"],
            "offset": 0,
            "bytes_base64": encode_chunk(b"x" * 100_000),
        }
        answer = await peer.call(UPLOAD_CHUNK, {"meta": {}, "data": chunk})
    require_no_room(answer)


@pytest.mark.slow
async def test_a_full_disk_refuses_writes_and_serves_reads_until_there_is_room(
    disk: SmallDisk,
) -> None:
    home = create_counted_home(disk.root / "home")
    account = Account()
    with DaemonProcess(home) as daemon:
        async with await Peer.connect(
            daemon.endpoint, capabilities=["artifacts", "subscriptions"]
        ) as peer:
            for number in range(10):
                assert "result" in await create(peer, account, Key("mira", "memo", f"m-{number}"))
            disk.fill()
            await require_refusals(peer, account)
            await require_no_upload(peer)
            require_no_room(await peer.call(CHECKPOINT, EMPTY))
            await require_reads(peer, account)
            disk.make_room()
            for number in range(10):
                assert "result" in await create(peer, account, Key("mira", "slip", f"s-{number}"))
            await peer.result(CHECKPOINT, EMPTY)
            await require_reads(peer, account)
        await check_daemon(daemon.endpoint, account)
        assert daemon.end() == 0
    with DaemonProcess(home) as again:
        assert (await read_status(again.endpoint))["recovered_after_unclean_shutdown"] is False
        await check_daemon(again.endpoint, account)
    check_truth(home / "data" / "patchouli.db")


@pytest.mark.slow
async def test_a_disk_that_fills_up_under_many_writers_loses_nothing(disk: SmallDisk) -> None:
    home = create_counted_home(disk.root / "home")
    account = Account()
    with DaemonProcess(home) as daemon:
        refused_before = 0

        def look() -> None:
            nonlocal refused_before
            told = len(account.told)
            refused = sum(attempt.refusal == -32009 for attempt in account.told[-400:])
            if told == 500:
                disk.fill()
            elif told > 700 and refused >= 200 and not refused_before:
                disk.make_room()
                refused_before = told
            elif refused_before and told == refused_before + 1000:
                for writer in writers:
                    writer.stop()

        writers = await connect_writers(
            daemon.endpoint,
            account,
            Random(4),  # noqa: S311 - any will do
            on_told=look,
        )
        await asyncio.gather(*(writer.lost for writer in writers))
        accepted = [attempt for attempt in account.told[-500:] if attempt.version is not None]
        assert len(accepted) > 250, "with room, writes go on"
        await check_daemon(daemon.endpoint, account)
        assert daemon.end() == 0
    with DaemonProcess(home) as again:
        await check_daemon(again.endpoint, account)


@pytest.mark.slow
async def test_a_daemon_without_room_to_stop_or_to_start_says_so_and_loses_nothing(
    disk: SmallDisk,
) -> None:
    home = create_counted_home(disk.root / "home")
    account = Account()
    with DaemonProcess(home) as daemon:
        async with await Peer.connect(daemon.endpoint) as peer:
            for number in range(10):
                assert "result" in await create(peer, account, Key("mira", "memo", f"m-{number}"))
        disk.fill()
        assert daemon.end() == 1
        assert "no room left on the disk" in daemon.output[-1]
    with pytest.raises(RuntimeError, match=r"ended with 1: .*no room left on the disk"):
        DaemonProcess(home).start()
    disk.make_room()
    with DaemonProcess(home) as again:
        assert (await read_status(again.endpoint))["recovered_after_unclean_shutdown"] is True
        await check_daemon(again.endpoint, account)
    check_truth(home / "data" / "patchouli.db")


@pytest.mark.slow
async def test_without_a_small_disk_the_same_holds_for_one_that_says_it_is_full(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = create_counted_home(folder / "home")
    account = Account()
    disk = FaultyDisk(DISK_FULL, concerned=lambda call: "patchouli.db" in call.path)
    with monkeypatch.context() as patch:
        patch.setattr(
            "patchouli.server.assemble.SqliteProvider", partial(SqliteProvider, disk=disk.disk)
        )
        async with serving(settings_of(home)) as served:
            async with await served.connect("subscriptions") as peer:
                for number in range(3):
                    key = Key("mira", "memo", f"m-{number}")
                    assert "result" in await create(peer, account, key)
                disk.fail(at=0, is_lasting=True)
                await require_refusals(peer, account)
                await require_reads(peer, account)
                disk.mend()
                for number in range(3):
                    key = Key("mira", "slip", f"s-{number}")
                    assert "result" in await create(peer, account, key)
            await check_daemon(served.endpoint, account)
    disk.close()
    async with serving(settings_of(home)) as again:
        await check_daemon(again.endpoint, account)
