"""Uploads and downloads through an engine with the shipped policy, on real files."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import (
    ArtifactLibrary,
    ArtifactLimits,
    ArtifactService,
    ArtifactStoreError,
    DeadlineExceededError,
    Engine,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnsupportedCapabilityError,
    VersionConflictError,
    load_policy,
    read_resource,
)
from patchouli.protocol import (
    DeleteData,
    DeleteParams,
    DownloadChunkData,
    DownloadChunkParams,
    ReadData,
    ReadParams,
    Ref,
    RpcError,
    UpdateData,
    UpdateParams,
    UploadBeginData,
    UploadBeginParams,
    UploadChunkData,
    UploadChunkParams,
    UploadCommitData,
    UploadCommitParams,
    encode_chunk,
)
from patchouli.provider import SystemIds, UnsafeStoreError, sync_directory
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

META: dict[str, Any] = {"workspace_id": "atlas", "user_id": "mira"}
OTHER: dict[str, Any] = {"workspace_id": "atlas", "user_id": "noor"}
METADATA: dict[str, Any] = {
    "core": {
        "schema": "patchouli.artifact@1",
        "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": None},
        "origin": {
            "provider": None,
            "binding": None,
            "native_type": None,
            "native_id": None,
            "native_revision": None,
        },
        "time": {
            "event_at": None,
            "source_created_at": None,
            "source_updated_at": None,
            "observed_at": "2031-03-02T09:20:00Z",
            "ingested_at": "2031-03-02T09:20:03Z",
        },
        "lifecycle": {"status": "active", "expires_at": None},
        "provenance": [],
    },
    "extensions": {},
}
CONTENT = b"seat,row\nA,12\n"
DIGEST = sha256(CONTENT).hexdigest()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """A service whose calls a test makes as one connection or another."""

    def __init__(self, service: ArtifactService, engine: Engine, clock: ManualClock) -> None:
        self.service = service
        self.engine = engine
        self.clock = clock
        self.me: object = "first connection"

    async def begin(self, name: str | None = "plan", **members: Any) -> str:
        data: dict[str, Any] = {
            "id": name,
            "media_type": "text/csv",
            "name": "seats.csv",
            "expected_byte_length": None,
            "expected_digest": None,
            "metadata": METADATA,
        }
        params = UploadBeginParams(meta=META, data=UploadBeginData.model_validate(data | members))
        return await self.service.begin(self.me, params)

    async def chunk(self, upload: str, offset: int, data: bytes) -> int:
        chunk = UploadChunkData(upload_id=upload, offset=offset, bytes_base64=encode_chunk(data))
        return await self.service.append(self.me, UploadChunkParams(meta={}, data=chunk))

    async def commit(self, upload: str, **meta: Any) -> Any:
        params = UploadCommitParams(meta={**META, **meta}, data=UploadCommitData(upload_id=upload))
        result = await self.service.commit(self.me, params)
        return json.loads(result.entity.value_json or ""), result.entity

    async def upload(self, content: bytes = CONTENT, name: str | None = "plan", **meta: Any) -> Any:
        upload = await self.begin(name)
        if content:
            await self.chunk(upload, 0, content)
        return await self.commit(upload, **meta)

    async def download(
        self,
        offset: int = 0,
        max_bytes: int = 524288,
        *,
        name: str = "plan",
        version: str | None = None,
        meta: Any = None,
    ) -> Any:
        data = DownloadChunkData(id=name, version=version, offset=offset, max_bytes=max_bytes)
        return await self.service.download(DownloadChunkParams(meta=meta or META, data=data))

    async def store(self, value: Any, bases: list[str], *, meta: Any = None) -> Any:
        """Write the artifact by hand, as any client may."""
        params = UpdateParams(
            meta={**(meta or META), "base_versions": bases, "conflict_strategy": "mvcc"},
            data=UpdateData(ref=Ref(type="artifact", id="plan"), value=value),
        )
        return (await self.engine.update(params)).entity

    async def heads(self) -> list[str]:
        params = ReadParams(meta=META, data=ReadData(ref=Ref(type="artifact", id="plan")))
        return [view.version for view in (await self.engine.read(params)).variants]


@asynccontextmanager
async def opened(root: Path, **limits: int) -> AsyncIterator[Desk]:
    clock = ManualClock()
    engine = await Engine.start(
        load_policy(read_resource("patchouli.default.json")),
        ModelProvider(ModelStorage(), clock),
        clock=clock,
        ids=SystemIds(),
    )
    library = ArtifactLibrary(root)
    service = ArtifactService(
        library,
        engine,
        node_id="node-oak",
        limits=ArtifactLimits(**limits),
        clock=clock,
        ids=SystemIds(),
    )
    service.start()
    try:
        yield Desk(service, engine, clock)
    finally:
        await service.aclose()
        await engine.shutdown()
        library.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
async def desk(root: Path) -> AsyncIterator[Desk]:
    async with opened(root) as desk:
        yield desk


def objects(root: Path) -> list[str]:
    return sorted(
        path.parent.name + path.name for path in (root / "objects").rglob("*") if path.is_file()
    )


def parts(root: Path) -> list[str]:
    return os.listdir(root / "uploads")


async def test_what_was_uploaded_in_chunks_is_downloaded_in_other_chunks(desk: Desk) -> None:
    upload = await desk.begin()
    assert await desk.chunk(upload, 0, CONTENT[:13]) == 13
    assert await desk.chunk(upload, 13, CONTENT[13:]) == 14
    value, entity = await desk.commit(upload)

    assert value["byte_length"] == 14
    assert value["digest"] == f"sha256:{DIGEST}"
    assert value["placement"] == {
        "kind": "managed",
        "provider": "node-oak",
        "key": f"sha256/{DIGEST}",
    }
    assert value["metadata"] == METADATA
    found, offset, is_end = b"", 0, False
    while not is_end:
        part = await desk.download(offset, 5, version=entity.version)
        found, offset, is_end = found + part.data, part.next_offset, part.is_end
    assert found == CONTENT


async def test_an_empty_artifact_is_valid(desk: Desk) -> None:
    value, _ = await desk.upload(b"")

    part = await desk.download()

    assert value["byte_length"] == 0
    assert (part.data, part.next_offset, part.is_end) == (b"", 0, True)


async def test_reading_at_the_end_gives_nothing_and_the_end(desk: Desk) -> None:
    await desk.upload()

    part = await desk.download(14)

    assert (part.data, part.is_end) == (b"", True)


async def test_equal_content_is_kept_once_and_read_through_both(desk: Desk, root: Path) -> None:
    await desk.upload(name="plan")
    await desk.upload(name="copy")

    assert objects(root) == [DIGEST]
    assert parts(root) == []
    assert (await desk.download(name="copy")).data == CONTENT


async def test_a_new_upload_heals_a_damaged_object(desk: Desk, root: Path) -> None:
    await desk.upload()
    (root / "objects" / "sha256" / DIGEST[:2] / DIGEST[2:]).write_bytes(b"x" * 14)

    await desk.upload(name="copy")

    assert (await desk.download()).data == CONTENT


async def test_another_scope_sees_neither_entity_nor_bytes(desk: Desk) -> None:
    value, _ = await desk.upload()

    with pytest.raises(NotFoundError):
        await desk.download(meta=OTHER)
    upload = await desk.begin(name="mine")
    await desk.chunk(upload, 0, b"other bytes")
    await desk.commit(upload, **OTHER)
    params = ReadParams(meta=OTHER, data=ReadData(ref=Ref(type="artifact", id="mine")))
    (own,) = (await desk.engine.read(params)).variants
    forged = UpdateParams(
        meta={**OTHER, "base_versions": [own.version]},
        data=UpdateData(ref=Ref(type="artifact", id="mine"), value=value),
    )
    with pytest.raises(InvalidRequestError, match="uploaded in this scope"):
        await desk.engine.update(forged)


@pytest.mark.parametrize("key", ["", "sha256/", "sha256/" + "A" * 64, "../" + "a" * 64, "x" * 64])
async def test_a_placement_with_a_malformed_key_is_refused(desk: Desk, key: str) -> None:
    value, entity = await desk.upload()
    value["placement"]["key"] = key or "-"

    with pytest.raises(InvalidRequestError):
        await desk.store(value, [entity.version])


async def test_an_upload_belongs_to_its_connection(desk: Desk) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT)

    desk.me = "second connection"

    with pytest.raises(NotFoundError):
        await desk.chunk(upload, 14, b"x")
    with pytest.raises(NotFoundError):
        await desk.commit(upload)


async def test_a_lost_connection_takes_its_uploads_along(desk: Desk, root: Path) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT)

    await desk.service.drop_connection(desk.me)

    assert parts(root) == []
    with pytest.raises(NotFoundError):
        await desk.commit(upload)


@pytest.mark.parametrize("offset", [0, 3, 5, 2**63])
async def test_a_wrong_offset_changes_nothing(desk: Desk, offset: int) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT[:4])

    with pytest.raises(InvalidRequestError, match="offset 4"):
        await desk.chunk(upload, offset, b"zz")

    await desk.chunk(upload, 4, CONTENT[4:])
    value, _ = await desk.commit(upload)
    assert value["digest"] == f"sha256:{DIGEST}"


async def test_the_last_chunk_may_be_sent_again(desk: Desk) -> None:
    upload = await desk.begin()

    assert [await desk.chunk(upload, 0, CONTENT) for _ in range(3)] == [14, 14, 14]

    value, _ = await desk.commit(upload)
    assert value["digest"] == f"sha256:{DIGEST}"


async def test_more_than_was_announced_is_refused_and_the_upload_goes_on(desk: Desk) -> None:
    upload = await desk.begin(expected_byte_length=14)

    with pytest.raises(InvalidRequestError):
        await desk.chunk(upload, 0, CONTENT + b"x")

    await desk.chunk(upload, 0, CONTENT)
    await desk.commit(upload)


@pytest.mark.parametrize(
    "expected",
    [
        {"expected_byte_length": 15},
        {"expected_digest": "sha256:" + "0" * 64},
        {"expected_digest": f"SHA256:{DIGEST}"},
    ],
)
async def test_unmet_expectations_leave_the_upload_open(desk: Desk, expected: Any) -> None:
    upload = await desk.begin(**expected)
    await desk.chunk(upload, 0, CONTENT)

    with pytest.raises(InvalidRequestError):
        await desk.commit(upload)

    with pytest.raises(InvalidRequestError):  # still open: what is refused is the expectation
        await desk.commit(upload)


@pytest.mark.parametrize("text", ["QR==", "QQ", "QQ=\n", "Q Q=", "-_8=", "QQ===", "===="])
async def test_only_canonical_base64_is_accepted(desk: Desk, text: str) -> None:
    upload = await desk.begin()
    chunk = UploadChunkData(upload_id=upload, offset=0, bytes_base64=text)

    with pytest.raises(RpcError):
        await desk.service.append(desk.me, UploadChunkParams(meta={}, data=chunk))


async def test_a_chunk_one_byte_too_large_is_refused_and_the_largest_is_not(desk: Desk) -> None:
    upload = await desk.begin()

    with pytest.raises(RpcError):
        await desk.chunk(upload, 0, b"x" * 524289)

    assert await desk.chunk(upload, 0, b"x" * 524288) == 524288


async def test_a_failed_creation_can_be_repeated_with_other_metadata(desk: Desk) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT)

    with pytest.raises(DeadlineExceededError):
        await desk.commit(upload, deadline_unix_ms=0)
    with pytest.raises(InvalidRequestError):
        await desk.commit(upload, user_id="")
    with pytest.raises(InvalidRequestError, match="complete"):
        await desk.chunk(upload, 14, b"x")

    value, _ = await desk.commit(upload)
    assert value["byte_length"] == 14


async def test_a_repeated_commit_is_answered_alike_for_a_while(desk: Desk) -> None:
    upload = await desk.begin(name=None)
    await desk.chunk(upload, 0, CONTENT)
    _, first = await desk.commit(upload)

    assert (await desk.commit(upload))[1] == first
    with pytest.raises(NotFoundError):
        await desk.chunk(upload, 14, b"x")

    desk.clock.now_unix_ms += 901_000
    await desk.begin()
    with pytest.raises(NotFoundError):
        await desk.commit(upload)


async def test_commits_of_one_upload_at_once_create_one_entity(desk: Desk) -> None:
    upload = await desk.begin(name=None)
    await desk.chunk(upload, 0, CONTENT)

    results = await asyncio.gather(*(desk.commit(upload) for _ in range(8)))

    assert len({entity.id for _, entity in results}) == 1


async def test_an_idle_upload_is_forgotten(desk: Desk, root: Path) -> None:
    upload = await desk.begin()
    desk.clock.now_unix_ms += 899_000
    await desk.chunk(upload, 0, CONTENT)  # not idle
    desk.clock.now_unix_ms += 899_000
    await desk.begin("other")
    await desk.chunk(upload, 14, b"x")

    desk.clock.now_unix_ms += 900_000
    await desk.begin("third")

    with pytest.raises(NotFoundError):
        await desk.chunk(upload, 15, b"x")
    assert len(parts(root)) == 1


async def test_uploads_are_counted_by_connection_and_in_total(root: Path) -> None:
    async with opened(root, uploads=3, uploads_per_connection=2) as desk:
        first = [await desk.begin(f"a{n}") for n in range(2)]
        with pytest.raises(OverloadedError):
            await desk.begin("a3")
        desk.me = "second connection"
        await desk.begin("b1")
        with pytest.raises(OverloadedError):
            await desk.begin("b2")

        desk.me = "first connection"
        await desk.commit(first[0])
        await desk.begin("a4")


async def test_uploads_that_begin_at_once_count(root: Path) -> None:
    async with opened(root, uploads=3, uploads_per_connection=3) as desk:
        begun = await asyncio.gather(
            *(desk.begin(f"a{n}") for n in range(5)), return_exceptions=True
        )

        assert sum(isinstance(one, str) for one in begun) == 3
        assert sum(isinstance(one, OverloadedError) for one in begun) == 2
        assert len(parts(root)) == 3


async def test_chunks_that_arrive_at_once_count(root: Path) -> None:
    async with opened(root, upload_bytes=15) as desk:
        uploads = [await desk.begin(f"a{n}") for n in range(3)]

        stored = await asyncio.gather(
            *(desk.chunk(upload, 0, b"x" * 7) for upload in uploads), return_exceptions=True
        )

        assert stored.count(7) == 2
        assert sum(isinstance(one, OverloadedError) for one in stored) == 1
        sizes = [path.stat().st_size for path in (root / "uploads").iterdir()]
        assert sorted(sizes) == [0, 7, 7]


async def test_an_upload_that_begins_while_its_connection_ends_is_forgotten(
    desk: Desk, root: Path
) -> None:
    beginning = asyncio.ensure_future(desk.begin())
    await asyncio.sleep(0)  # it has begun, and waits for its thread

    await desk.service.drop_connection(desk.me)

    upload = await beginning
    with pytest.raises(NotFoundError):
        await desk.chunk(upload, 0, b"x")
    assert parts(root) == []


async def test_a_begin_that_fails_takes_no_place(desk: Desk, root: Path) -> None:
    (root / "uploads").rename(root / "away")
    with pytest.raises(ArtifactStoreError):
        await desk.begin()
    (root / "away").rename(root / "uploads")

    for number in range(16):  # as many as one connection may have
        await desk.begin(f"a{number}")


async def test_of_answers_as_many_are_kept_as_allowed_the_newest_ones(root: Path) -> None:
    async with opened(root, results=2) as desk:
        uploads = [await desk.begin(f"a{n}") for n in range(3)]
        answers = [await desk.commit(upload) for upload in uploads]

        with pytest.raises(NotFoundError):
            await desk.commit(uploads[0])
        assert [await desk.commit(upload) for upload in uploads[1:]] == answers[1:]


async def test_sizes_are_bounded_at_begin_and_while_they_grow(root: Path) -> None:
    async with opened(root, artifact_bytes=10, upload_bytes=15) as desk:
        with pytest.raises(InvalidRequestError):
            await desk.begin(expected_byte_length=11)
        upload = await desk.begin(expected_byte_length=10)
        with pytest.raises(InvalidRequestError):
            await desk.chunk(upload, 0, b"x" * 11)
        assert await desk.chunk(upload, 0, b"x" * 10) == 10
        other = await desk.begin("other")
        with pytest.raises(OverloadedError):
            await desk.chunk(other, 0, b"y" * 6)
        assert await desk.chunk(other, 0, b"y" * 5) == 5


async def test_a_conflicted_artifact_needs_a_version(desk: Desk) -> None:
    value, entity = await desk.upload()
    newer = await desk.store({**value, "name": "a.csv"}, [entity.version])
    await desk.store({**value, "name": "b.csv"}, [entity.version])
    heads = await desk.heads()

    with pytest.raises(VersionConflictError) as refusal:
        await desk.download()

    assert list(refusal.value.current_versions) == heads
    assert newer.version in heads
    assert (await desk.download(version=newer.version)).data == CONTENT
    with pytest.raises(NotFoundError):
        await desk.download(version=entity.version)


@pytest.mark.parametrize(
    "placement",
    [
        {"kind": "indexed", "provider": "drive", "locator": "drive://plan", "revision": None},
        {"kind": "managed", "provider": "node-elm", "key": f"sha256/{DIGEST}"},
    ],
)
async def test_bytes_of_another_place_are_not_served(desk: Desk, placement: Any) -> None:
    value, entity = await desk.upload()
    await desk.store({**value, "placement": placement}, [entity.version])

    with pytest.raises(UnsupportedCapabilityError):
        await desk.download()


async def test_a_range_is_checked_after_the_content_was_found(desk: Desk) -> None:
    with pytest.raises(NotFoundError):
        await desk.download(99, 0)
    await desk.upload()

    with pytest.raises(InvalidRequestError, match="14 bytes"):
        await desk.download(15, 0)
    for max_bytes in (0, 524289):
        with pytest.raises(InvalidRequestError, match="max_bytes"):
            await desk.download(0, max_bytes)


async def test_an_entity_that_contradicts_its_bytes_is_not_served(desk: Desk, root: Path) -> None:
    value, entity = await desk.upload()
    await desk.store({**value, "byte_length": 15}, [entity.version])

    with pytest.raises(ArtifactStoreError):
        await desk.download()


async def test_missing_content_is_not_found(desk: Desk, root: Path) -> None:
    await desk.upload()
    (root / "objects" / "sha256" / DIGEST[:2] / DIGEST[2:]).unlink()

    with pytest.raises(NotFoundError):
        await desk.download()


async def test_a_tombstone_has_no_bytes(desk: Desk) -> None:
    _, entity = await desk.upload()
    await desk.engine.delete(
        DeleteParams(
            meta={**META, "base_versions": [entity.version]},
            data=DeleteData(ref=Ref(type="artifact", id="plan")),
        )
    )

    with pytest.raises(NotFoundError):
        await desk.download()


@pytest.mark.parametrize(
    ("number", "refusal"), [(errno.ENOSPC, OverloadedError), (errno.EIO, ArtifactStoreError)]
)
async def test_a_write_that_fails_leaves_the_upload_where_it_was(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, number: int, refusal: type[Exception]
) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT[:4])
    write = os.pwrite

    def fail(descriptor: int, data: bytes, offset: int) -> int:
        write(descriptor, bytes(data)[:1], offset)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(refusal):
            await desk.chunk(upload, 4, CONTENT[4:])

    await desk.chunk(upload, 4, CONTENT[4:])
    value, _ = await desk.commit(upload)
    assert value["digest"] == f"sha256:{DIGEST}"


async def test_what_a_failed_chunk_left_behind_is_not_published(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT)
    write = os.pwrite

    def write_some(descriptor: int, data: bytes, offset: int) -> int:
        write(descriptor, bytes(data)[:3], offset)
        return fail()

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_some)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(ArtifactStoreError):
            await desk.chunk(upload, len(CONTENT), b"more")

    await desk.commit(upload)
    assert (await desk.download()).data == CONTENT


@pytest.mark.parametrize("call", ["fsync", "ftruncate", "mkdir", "replace"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_bytes_that_cannot_be_published_are_uploaded_again(
    desk: Desk, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises((ArtifactStoreError, OverloadedError)) as refusal:
            await desk.commit(upload)

    assert not refusal.value.retryable
    # A second sync would succeed, whatever the first one has lost.
    with pytest.raises(NotFoundError):
        await desk.commit(upload)
    assert parts(root) == []
    with pytest.raises(NotFoundError):
        await desk.download()
    await desk.upload()
    assert (await desk.download()).data == CONTENT


async def test_a_grant_that_fails_lets_the_commit_be_repeated(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await desk.begin()
    await desk.chunk(upload, 0, CONTENT)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("patchouli.backend.artifacts.library.PrivateFiles.make_directory", fail)
        with pytest.raises(OverloadedError):
            await desk.commit(upload)

    await desk.commit(upload)
    assert (await desk.download()).data == CONTENT


async def test_names_that_somebody_else_made_are_synced_before_they_are_relied_upon(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(root) as desk:
        await desk.upload()
    synced: list[Path] = []

    def note(path: Path) -> None:
        synced.append(path)
        sync_directory(path)

    async with opened(root) as desk:
        monkeypatch.setattr("patchouli.backend.artifacts.library.sync_directory", note)
        await desk.upload(name="again")

    objects_root, grants_root = root / "objects" / "sha256", root / "grants"
    assert synced[:2] == [objects_root, objects_root / DIGEST[:2]]
    assert synced[2].is_relative_to(grants_root)


async def test_a_restart_removes_parts_and_keeps_objects_and_grants(root: Path) -> None:
    async with opened(root) as desk:
        await desk.upload()
    (root / "uploads" / "left.part").write_bytes(b"x")
    (root / "uploads" / "notes.txt").write_bytes(b"not ours")

    library = ArtifactLibrary(root)

    assert library.foreign_entries == ["notes.txt"]
    assert parts(root) == ["notes.txt"]
    assert objects(root) == [DIGEST]
    library.close()


async def test_one_root_has_one_user(desk: Desk, root: Path) -> None:
    with pytest.raises(UnsafeStoreError, match="in use"):
        ArtifactLibrary(root)

    await desk.upload()


@pytest.mark.parametrize("folder", [".", "objects/sha256", "uploads", "grants"])
def test_folders_that_others_can_enter_are_refused_and_left_alone(root: Path, folder: str) -> None:
    ArtifactLibrary(root).close()
    (root / folder).chmod(0o750)

    with pytest.raises(UnsafeStoreError, match="accessible by other users"):
        ArtifactLibrary(root)

    assert (root / folder).stat().st_mode & 0o777 == 0o750


def test_everything_it_makes_is_private(root: Path) -> None:
    library = ArtifactLibrary(root)
    os.close(library.create_part("u"))

    modes = {
        path.relative_to(root).as_posix(): path.stat().st_mode & 0o777
        for path in (root, *root.rglob("*"))
    }

    assert {mode for name, mode in modes.items() if name in {"uploads/u.part", "lock"}} == {0o600}
    assert {mode for name, mode in modes.items() if name not in {"uploads/u.part", "lock"}} == {
        0o700
    }
    library.close()


def test_a_link_in_place_of_a_folder_is_refused(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    root.mkdir(mode=0o700)
    (root / "uploads").symlink_to(elsewhere)

    with pytest.raises(UnsafeStoreError):
        ArtifactLibrary(root)


async def test_a_policy_without_artifacts_takes_no_uploads(root: Path) -> None:
    document = json.loads(read_resource("patchouli.default.json"))
    del document["entity_types"]["artifact"]
    clock = ManualClock()
    engine = await Engine.start(
        load_policy(json.dumps(document)),
        ModelProvider(ModelStorage(), clock),
        clock=clock,
        ids=SystemIds(),
    )
    library = ArtifactLibrary(root)
    service = ArtifactService(
        library,
        engine,
        node_id="n",
        limits=ArtifactLimits(),
        clock=clock,
        ids=SystemIds(),
    )

    with pytest.raises(InvalidRequestError, match="no entity type artifact"):
        await Desk(service, engine, clock).begin()

    await service.aclose()
    await engine.shutdown()
    library.close()


def test_base64_of_a_chunk_is_the_standard_one() -> None:
    assert encode_chunk(CONTENT) == base64.b64encode(CONTENT).decode()
