"""A power loss at every answer: what was acknowledged is on the disk, and the index agrees with it.

The engine and the artifact library run on disks that know what was synced. At every answer they
leave an image of what the machine would find after a power loss in that instant, bytes and names
alike. A daemon is started on each image and held to the account of what had been told.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from random import Random  # noqa: TID251 - seeded, and the seed is written below
from typing import TYPE_CHECKING, Any, Final

import apsw
import orjson
import pytest
from patchouli.backend import (
    ArtifactLimits,
    ArtifactService,
    Engine,
    EngineError,
    VersionConflictError,
    canonical,
    load_policy,
)
from patchouli.backend.artifacts.library import ArtifactLibrary, Digest
from patchouli.protocol import (
    CREATE,
    DELETE,
    UPDATE,
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    Ref,
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
from patchouli.provider import ProviderError, ScopeText, SystemClock, SystemIds
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.connection import open_writer
from patchouli.provider_sqlite.testing import (
    ForgetfulDisk,
    check_index,
    check_truth,
)
from patchouli.server.settings import CommandError
from patchouli.server.testing import ARTIFACT_METADATA, serving, settings_of

from tests.crash.account import (
    Account,
    Attempt,
    Key,
    create_counted_home,
    meta_of,
)
from tests.crash.audit import check_daemon, check_database, with_index
from tests.crash.extent import FIRST, SEED, STRIDE, say_seed
from tests.crash.files import ForgetfulFiles
from tests.crash.uploading import check_uploads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from pathlib import Path

    from patchouli.backend import EntityResult
    from patchouli.protocol import JsonValue
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.testing import DiskCall

# So short that the log is emptied and begun anew several times during the script.
LIMITS: Final = SqliteLimits(log_pages_soft=20, log_pages_turn=40, log_pages_hard=60)
NODE: Final = "local"


@dataclass(frozen=True, slots=True)
class Image:
    """What is left, and what had been told until then."""

    home: Path
    account: Account


@dataclass(slots=True, eq=False)
class Machine:
    """A home on disks that forget, with an engine and an artifact service at work."""

    home: Path
    files: ForgetfulFiles
    disk: ForgetfulDisk
    engine: Engine
    service: ArtifactService
    account: Account
    images: list[Image] = field(default_factory=list[Image])
    chance: Random = field(default_factory=lambda: Random(31))  # noqa: S311 - what survives

    async def create(self, key: Key, text: str = "a leaf") -> Attempt:
        attempt = self.account.attempt(self.account.new_peer(), CREATE, key)
        value: JsonValue = {"text": f"{text} {attempt.word}", "tag": attempt.word}
        data = CreateData(type=key.type, id=key.id, value=value)
        params = CreateParams(meta=self._meta(attempt), data=data)
        return await self._told(attempt, self.engine.create(params))

    async def update(self, key: Key, *bases: Attempt, strategy: str = "merge") -> Attempt:
        """Add a word to the value of the first base, so that it merges with other additions."""
        attempt = self.account.attempt(
            self.account.new_peer(), UPDATE, key, tuple(base.version or "" for base in bases)
        )
        value = dict(bases[0].value)
        value["text"] += f" {attempt.word}"
        data = UpdateData(ref=Ref(type=key.type, id=key.id), value=value)
        params = UpdateParams(meta=self._meta(attempt, conflict_strategy=strategy), data=data)
        return await self._told(attempt, self.engine.update(params))

    async def delete(self, key: Key, *bases: Attempt) -> Attempt:
        attempt = self.account.attempt(
            self.account.new_peer(), DELETE, key, tuple(base.version or "" for base in bases)
        )
        params = DeleteParams(
            meta=self._meta(attempt), data=DeleteData(ref=Ref(type=key.type, id=key.id))
        )
        return await self._told(attempt, self.engine.delete(params))

    async def upload(self, key: Key, content: bytes) -> Attempt:
        attempt = self.account.attempt(self.account.new_peer(), CREATE, key)
        meta = self._meta(attempt)
        begin = UploadBeginData.model_validate(
            {
                "id": key.id,
                "media_type": "text/plain",
                "name": attempt.word,
                "metadata": ARTIFACT_METADATA,
            }
        )
        upload = await self.service.begin(self, UploadBeginParams(meta=meta, data=begin))
        chunk = UploadChunkData(upload_id=upload, offset=0, bytes_base64=encode_chunk(content))
        await self.service.append(self, UploadChunkParams(meta=meta, data=chunk))
        params = UploadCommitParams(meta=meta, data=UploadCommitData(upload_id=upload))
        return await self._told(attempt, self.service.commit(self, params), content)

    def _meta(self, attempt: Attempt, **more: Any) -> dict[str, Any]:
        if attempt.bases:
            more["base_versions"] = list(attempt.bases)
        return meta_of(attempt.key.user, attempt=attempt.number, **more)

    async def _told(self, attempt: Attempt, answer: Any, content: bytes | None = None) -> Attempt:
        try:
            result: EntityResult = await answer
        except VersionConflictError:
            attempt.refusal = -32004
        else:
            attempt.version = result.entity.version
            attempt.value = orjson.loads(result.entity.value_json or "null")
            if content is not None:
                self.account.uploaded[attempt.key] = content
        self.account.told.append(attempt)
        self._lose_power("nothing", lambda _: False)
        if len(self.account.told) % 4 == 0:
            self._lose_power("something", lambda _: self.chance.random() < 0.5)
        return attempt

    def _lose_power(self, name: str, survives: Callable[[DiskCall], bool]) -> None:
        """Leave an image in which `survives` tells which unsynced writes of SQLite are there."""
        home = self.home.with_name(f"{len(self.account.told)}-{name}")
        self.files.lose_power(self.home.name, home)
        for path in (home / "data").glob("patchouli.db*"):
            if path.suffix != ".lock":
                path.unlink()
        left = home.with_name("left")
        self.disk.lose_power(left, survives=survives)
        for path in left.iterdir():
            if path.suffix != ".lock":
                shutil.move(path, home / "data")
        shutil.rmtree(left)
        self.images.append(Image(home, deepcopy(self.account)))


class Camera(ForgetfulDisk):
    """A disk that leaves an image of itself before some of its calls, torn as it is then."""

    def __init__(self, folder: Path, account: Account, chance: Random) -> None:
        super().__init__()
        self._folder = folder
        self._account = account
        self._chance = chance
        self.images: list[tuple[Path, int, int]] = []

    def before(self, call: DiskCall) -> None:
        super().before(call)
        number = len(self.calls)
        if call.kind != "read" and number % STRIDE == FIRST:
            image = self._folder / f"call-{number}"
            told = len(self._account.told)  # what is told meanwhile may be missing from the image
            with suppress(FileExistsError):  # another thread has just the same number
                self.lose_power(image, survives=self._survives)
                self.images.append((image, told, len(self._account.attempts)))

    def _survives(self, _: DiskCall) -> float:
        return self._chance.choice((0.0, 0.5, 1.0))


@asynccontextmanager
async def machine_at(
    folder: Path,
    files: ForgetfulFiles,
    account: Account | None = None,
    disk: ForgetfulDisk | None = None,
) -> AsyncGenerator[Machine]:
    """Yield a machine at work on `folder / "home"`, which may go on with an account."""
    home = create_counted_home(folder / "home")
    disk = disk or ForgetfulDisk()
    clock, ids = SystemClock(), SystemIds()
    async with AsyncExitStack() as cleanup:
        cleanup.callback(disk.close)
        provider = SqliteProvider(home / "data" / "patchouli.db", limits=LIMITS, disk=disk.disk)
        cleanup.push_async_callback(provider.shutdown)
        policy = load_policy(home / "config.json")
        engine = await Engine.start(policy, provider, clock=clock, ids=ids)
        library = ArtifactLibrary(home / "data" / "artifacts")
        cleanup.callback(library.close)
        service = ArtifactService(
            library,
            engine,
            node_id=NODE,
            limits=ArtifactLimits(),
            clock=clock,
            ids=ids,
        )
        cleanup.push_async_callback(service.aclose)
        yield Machine(home, files, disk, engine, service, account or Account())


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgetfulFiles]:
    files = ForgetfulFiles(folder, monkeypatch)
    yield files
    files.close()


async def play(machine: Machine) -> None:
    """Do what the test is about: each kind of mutation, alone and many at once."""
    keys = [Key("mira", "memo", f"m-{number}") for number in range(4)]
    first = [await machine.create(key) for key in keys]
    second = await machine.update(keys[0], first[0])
    merged = await machine.update(keys[0], first[0])  # joins with `second`
    assert second.word in merged.value["text"]
    apart = await machine.update(keys[1], first[1])
    beside = await machine.update(keys[1], first[1], strategy="mvcc")
    refused = await machine.update(keys[1], first[1], strategy="reject")
    assert refused.refusal is not None
    await machine.update(keys[1], apart, beside)
    await machine.delete(keys[2], first[2])
    await machine.upload(Key("mira", "artifact", "a-1"), b"one " * 300)
    await asyncio.gather(
        *(machine.create(Key("noor", "slip", f"s-{number}"), "x" * 2000) for number in range(8)),
        machine.upload(Key("noor", "artifact", "a-2"), b"two " * 300),
        machine.upload(Key("noor", "artifact", "a-3"), b"two " * 300),
        machine.upload(Key("mira", "artifact", "a-4"), b"two " * 300),
    )
    await machine.engine.checkpoint(None)
    await asyncio.gather(*(machine.update(keys[3], first[3]) for _ in range(6)))
    await machine.delete(keys[1], apart)  # stale: a tombstone beside the head


async def check_all(images: Sequence[Image]) -> None:
    """Hold every image to its account; in a short run, start a daemon on some of them only."""
    for number, image in enumerate(images):
        check_stored(image)
        if number % STRIDE == FIRST:
            await check_daemon_on(image)


def check_stored(image: Image) -> None:
    """Look for what was acknowledged in a copy of the files."""
    data = image.home.with_name(f"{image.home.name}-copy")
    shutil.copytree(image.home / "data", data)
    check_database(data / "patchouli.db", image.account)
    library = ArtifactLibrary(data / "artifacts")
    for key, content in image.account.uploaded.items():
        digest = Digest(sha256(content).hexdigest())
        assert library.is_granted(ScopeText(canonical({**meta_of(key.user)})), digest)
        descriptor = library.open_object(digest)
        assert descriptor is not None
        with os.fdopen(descriptor, "rb") as file:
            assert file.read() == content
    library.close()
    shutil.rmtree(data)


async def check_daemon_on(image: Image) -> None:
    """Start a daemon on the image and hold it to its account."""
    shutil.copy(image.home.with_name("home") / "config.json", image.home)
    async with serving(settings_of(image.home)) as served:
        await check_daemon(served.endpoint, image.account)
        await check_uploads(served.endpoint, image.account)
    check_truth(image.home / "data" / "patchouli.db")
    check_index(image.home / "data" / "patchouli.db", image.home / "rebuilt")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_power_loss_at_any_answer_loses_nothing_acknowledged(
    folder: Path, files: ForgetfulFiles
) -> None:
    async with machine_at(folder, files) as machine:
        await play(machine)

    assert len(machine.images) > 30
    await check_all(machine.images)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_power_loss_at_any_call_of_the_disk_loses_nothing_acknowledged(
    folder: Path, files: ForgetfulFiles
) -> None:
    say_seed()
    account = Account()
    chance = Random(SEED)  # noqa: S311 - which writes survive, and how much of them
    camera = Camera(folder, account, chance)
    async with machine_at(folder, files, account, camera) as machine:
        await play(machine)

    assert len(camera.images) * STRIDE > 300
    for image, told, sent in camera.images:
        database = image / "patchouli.db"
        if told:
            check_database(database, account.as_of(told=told, sent=sent))
            with_index(database, image / "rebuilt")
        shutil.rmtree(image)


@pytest.mark.slow
async def test_with_fewer_syncs_of_the_database_something_acknowledged_is_lost(
    folder: Path, files: ForgetfulFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_careless(*arguments: Any, **settings: Any) -> Connection:
        connection = open_writer(*arguments, **settings)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    monkeypatch.setattr("patchouli.provider_sqlite.store.open_writer", open_careless)
    async with machine_at(folder, files) as machine:
        await play(machine)

    with pytest.raises((AssertionError, apsw.SQLError)):  # the tables themselves may be missing
        await check_all(machine.images)


@pytest.mark.parametrize("sync", ["files", "names"])
async def test_with_fewer_syncs_of_artifacts_their_bytes_are_lost(
    folder: Path, files: ForgetfulFiles, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    async with machine_at(folder, files) as machine:
        if sync == "names":
            monkeypatch.setattr("patchouli.backend.artifacts.library.sync_directory", skip)
        else:
            monkeypatch.setattr("patchouli.backend.artifacts.library.os.fsync", skip)
        await machine.upload(Key("mira", "artifact", "a-1"), b"one " * 300)

    with pytest.raises(AssertionError):
        check_stored(machine.images[-1])


def skip(_: object) -> None:
    """Sync nothing."""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_power_loss_after_a_kill_at_any_sync_loses_nothing_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in count(FIRST, STRIDE):
        case = folder / str(number)
        case.mkdir()
        files = ForgetfulFiles(case, monkeypatch)
        files.syncs_left = number
        account = Account()
        with suppress(OSError, CommandError, ProviderError, EngineError):
            async with machine_at(case, files, account) as killed:
                await killed.upload(Key("mira", "artifact", "a-1"), b"one")
        was_killed = not files.syncs_left
        files.syncs_left = None

        async with machine_at(case, files, account) as machine:
            await machine.create(Key("noor", "memo", "m-1"))
            await machine.upload(Key("noor", "artifact", "a-1"), b"one")
            await machine.upload(Key("mira", "artifact", "a-2"), b"one")
        check_stored(machine.images[-1])

        files.close()
        if not was_killed:
            assert number > 10, "files are synced, and their names"
            return
