"""Artifact bytes over the socket; the rules of single requests stand in the transcripts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import ArtifactLibrary, ArtifactStoreError
from patchouli.protocol import (
    CREATE,
    DOWNLOAD_CHUNK,
    READ,
    UPLOAD_BEGIN,
    UPLOAD_CHUNK,
    UPLOAD_COMMIT,
)
from patchouli.provider import UnsafeStoreError
from patchouli.provider_sqlite import Archive, SqliteProvider
from patchouli.server.assemble import log_care
from patchouli.server.logs import Log
from patchouli.server.settings import CommandError
from patchouli.server.testing import (
    beginning,
    params,
    serving,
    settings_of,
    upload,
)

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.server.testing import Peer, Served

DATA = bytes(range(256)) + b"the end"


async def download(peer: Peer, name: str, *, size: int = 524_288) -> bytes:
    received, version = b"", None
    while True:
        data = {"id": name, "version": version, "offset": len(received), "max_bytes": size}
        part = (await peer.result(DOWNLOAD_CHUNK, params(data)))["data"]
        version = part["entity"]["version"]
        received += base64.b64decode(part["bytes_base64"])
        if part["eof"]:
            return received


def objects(home: Path) -> list[Path]:
    return [path for path in (home / "data/artifacts/objects").rglob("*") if path.is_file()]


@pytest.mark.scenario(16)
async def test_what_goes_up_in_small_chunks_comes_down_identical(
    served: Served, peer: Peer
) -> None:
    entity = await upload(peer, DATA, size=13, id="a")

    async with await served.connect("artifacts") as other:
        assert await download(other, "a", size=7) == DATA
        elsewhere = await other.error(
            DOWNLOAD_CHUNK,
            {
                "meta": {"workspace_id": "atlas", "user_id": "noor"},
                "data": {"id": "a", "version": None, "offset": 0, "max_bytes": 1},
            },
        )
    assert entity["value"]["byte_length"] == len(DATA)
    assert entity["value"]["digest"] == f"sha256:{hashlib.sha256(DATA).hexdigest()}"
    assert (elsewhere["code"], elsewhere["data"]["reason"]) == (-32003, "NOT_FOUND")


@pytest.mark.scenario(16)
async def test_a_chunk_of_the_largest_size_fits_into_one_line(peer: Peer) -> None:
    data = os.urandom(524_288)

    await upload(peer, data, id="a")

    assert await download(peer, "a") == data


@pytest.mark.scenario(17)
async def test_equal_content_is_stored_once_and_belongs_to_both(home: Path, peer: Peer) -> None:
    await upload(peer, DATA, id="a")
    await upload(peer, DATA, id="b", size=100)

    assert len(objects(home)) == 1
    assert stat.S_IMODE(objects(home)[0].stat().st_mode) == 0o600
    assert await download(peer, "a") == await download(peer, "b") == DATA


@pytest.mark.scenario(18)
async def test_one_byte_over_the_largest_chunk_is_refused_and_the_upload_goes_on(
    peer: Peer,
) -> None:
    begun = await peer.result(UPLOAD_BEGIN, params(beginning(id="a")))
    upload_id = begun["data"]["upload_id"]

    def chunk(data: bytes) -> dict[str, Any]:
        text = base64.b64encode(data).decode()
        return params({"upload_id": upload_id, "offset": 0, "bytes_base64": text})

    refused = await peer.error(UPLOAD_CHUNK, chunk(b"x" * 524_289))
    await peer.result(UPLOAD_CHUNK, chunk(DATA))
    await peer.result(UPLOAD_COMMIT, params({"upload_id": upload_id}))

    assert refused["code"] == -32602
    assert await download(peer, "a") == DATA


@pytest.mark.scenario(20)
async def test_parts_of_a_former_run_are_removed_and_what_is_foreign_is_told_and_stays(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uploads = home / "data/artifacts/uploads"
    async with serving(settings_of(home)):
        pass
    (uploads / "left-over.part").write_bytes(b"half")
    (uploads / "notes.txt").write_bytes(b"mine")

    async with serving(settings_of(home)):
        left = sorted(path.name for path in uploads.iterdir())

    assert left == ["notes.txt"]
    assert "uploads: 'notes.txt' is no upload; it was left alone" in capsys.readouterr().err


@pytest.mark.scenario(22)
async def test_a_placement_that_was_not_written_here_opens_nothing(
    served: Served, peer: Peer
) -> None:
    entity = await upload(peer, DATA, id="a")
    forged = {"meta": {"workspace_id": "atlas", "user_id": "noor"}}
    async with await served.connect("artifacts") as other:
        refused = await other.error(
            CREATE,
            {**forged, "data": {"type": "artifact", "id": "a", "value": entity["value"]}},
        )
        missing = await other.error(
            READ, {**forged, "data": {"ref": {"type": "artifact", "id": "a"}}}
        )
    indexed = {
        **entity["value"],
        "placement": {"kind": "indexed", "provider": "x", "locator": "y", "revision": None},
    }
    await peer.result(CREATE, params({"type": "artifact", "id": "i", "value": indexed}))
    elsewhere = await peer.error(
        DOWNLOAD_CHUNK, params({"id": "i", "version": None, "offset": 0, "max_bytes": 1})
    )

    assert refused["code"] == -32602
    assert missing["code"] == -32003
    assert (elsewhere["code"], elsewhere["data"]["reason"]) == (-32006, "UNSUPPORTED_CAPABILITY")


@pytest.mark.scenario(23)
async def test_a_commit_whose_answer_was_lost_may_be_repeated(peer: Peer) -> None:
    begun = await peer.result(UPLOAD_BEGIN, params(beginning()))
    commit = params({"upload_id": begun["data"]["upload_id"]})

    first = await peer.result(UPLOAD_COMMIT, commit)
    second = await peer.result(UPLOAD_COMMIT, commit)

    assert first == second


async def test_two_daemons_do_not_share_one_library(home: Path, folder: Path) -> None:
    async with serving(settings_of(home)):
        shared = replace(settings_of(folder / "other"), artifacts=home / "data/artifacts")
        with pytest.raises(UnsafeStoreError, match="in use"):
            async with serving(shared):
                pass


async def test_an_artifact_directory_that_cannot_be_one_is_told(home: Path) -> None:
    settings = settings_of(home)
    (home / "data/artifacts/uploads").mkdir(exist_ok=True)
    (home / "data/artifacts/uploads").rmdir()
    (home / "data/artifacts/uploads").touch()

    with pytest.raises(CommandError, match="--artifacts"):
        async with serving(settings):
            pass


async def test_at_the_end_the_library_is_let_go_of_after_the_store(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    shut_down, close = SqliteProvider.shutdown, ArtifactLibrary.close

    async def shutdown_and_tell(provider: SqliteProvider) -> None:
        await shut_down(provider)
        ended.append("store")

    def close_and_tell(library: ArtifactLibrary) -> None:
        close(library)
        ended.append("library")

    monkeypatch.setattr(SqliteProvider, "shutdown", shutdown_and_tell)
    monkeypatch.setattr(ArtifactLibrary, "close", close_and_tell)

    async with serving(settings_of(home)) as served:
        assert ended == []
        assert served.endpoint.exists()

    assert ended == ["store", "library"]


class Told(Log):
    """A log that lets a test wait for an event."""

    def __init__(self, event: str) -> None:
        super().__init__("error")
        self._event = event
        self.fields: dict[str, Any] = {}
        self.came = asyncio.Event()

    def info(self, event: str, **fields: Any) -> None:
        self._note(event, fields)

    def error(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        assert error is None
        self._note(event, fields)

    def _note(self, event: str, fields: dict[str, Any]) -> None:
        if event == self._event:
            self.fields = fields
            self.came.set()


def grow_old(home: Path) -> None:
    """Let a day pass by for the artifacts of a daemon that is stopped."""
    for path in objects(home):
        os.utime(path, (0, 0))
    with Archive(home / "data" / "patchouli.db") as archive:
        note = {"incarnation": archive.incarnation, "since_unix_ms": 0}
    (home / "data/artifacts/database").write_text(json.dumps(note), encoding="utf-8")


@pytest.mark.slow
async def test_a_daemon_collects_what_nothing_names_by_itself(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect("artifacts") as peer:
        await upload(peer, b"needed", id="a")
        with pytest.raises(AssertionError):  # its bytes stay, and no entity comes to be
            await upload(peer, b"needless", id="a")
    grow_old(home)
    log = Told("artifacts.collected")

    settings = settings_of(home, artifact_collect_seconds=1)
    async with serving(settings, log=log) as served:
        await asyncio.wait_for(log.came.wait(), 10)
        async with await served.connect("artifacts") as peer:
            assert await download(peer, "a") == b"needed"

    assert log.fields == {"objects": 1, "bytes": len(b"needless")}
    assert len(objects(home)) == 1


@pytest.mark.slow
async def test_a_daemon_finds_damaged_bytes_by_itself(home: Path) -> None:
    log = Told("artifacts.damaged")

    settings = settings_of(home, artifact_collect_seconds=0, artifact_check_seconds=1)
    async with serving(settings, log=log) as served, await served.connect("artifacts") as peer:
        await upload(peer, b"whole", id="a")
        objects(home)[0].write_bytes(b"whale")
        await asyncio.wait_for(log.came.wait(), 10)

    assert log.fields == {"objects": 1}


def test_a_failure_of_the_care_is_logged_with_its_class() -> None:
    log = Told("artifacts.care_failed")

    log_care(log, ArtifactStoreError("the disk"))

    assert log.fields == {"reason": "ArtifactStoreError"}
