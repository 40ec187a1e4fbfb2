"""The n-th call of the disk fails, for every n: typed errors, nobody left waiting, nothing lost.

In a short run some numbers are left out, others each time (`extent.py`).

The engine works with many requests at once, so that groups of commits fail together. Reads, the
index and checkpoints meet the failure as well as commits do. What was answered with an error must
not have been done, unless the answer says that this is open.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from patchouli.backend import (
    ArtifactLimits,
    ArtifactService,
    Engine,
    EngineError,
    load_policy,
)
from patchouli.backend.artifacts.library import ArtifactLibrary
from patchouli.protocol import (
    CREATE,
    DELETE,
    UPDATE,
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    ReadData,
    ReadParams,
    Ref,
    RetrieveData,
    RetrieveParams,
    SubscribeData,
    SubscribeParams,
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
from patchouli.provider import OutcomeUnknownError, ProviderError, SystemClock, SystemIds
from patchouli.provider_sqlite import IndexLimits, SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.testing import IO_FAILURE, FaultyDisk
from patchouli.server.testing import ARTIFACT_METADATA

from tests.crash.account import (
    Account,
    Attempt,
    Key,
    create_counted_home,
    meta_of,
)
from tests.crash.audit import check_database, with_index
from tests.crash.extent import FIRST, STRIDE, say_seed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from patchouli.provider_sqlite import Disk

PATIENCE: Final = 30.0  # seconds until a waiter counts as forgotten
LIMITS: Final = SqliteLimits(log_pages_soft=20, log_pages_turn=30, log_pages_hard=40)
INDEX_LIMITS: Final = IndexLimits(gather_seconds=0.001, retry_seconds=0.001)


@dataclass(slots=True, eq=False)
class Desk:
    """An engine that is asked for many things at once, and the account of its answers."""

    engine: Engine
    provider: SqliteProvider
    account: Account

    async def create(self, key: Key) -> Attempt:
        attempt = self.account.attempt(self.account.new_peer(), CREATE, key)
        value = {"text": f"a leaf {attempt.word} {'x' * 300}", "tag": attempt.word}
        data = CreateData.model_validate({"type": key.type, "id": key.id, "value": value})
        params = CreateParams(meta=self._meta(attempt), data=data)
        return await self._settle(attempt, self.engine.create(params))

    async def update(self, base: Attempt) -> Attempt:
        if base.version is None:
            return base
        attempt = self.account.attempt(self.account.new_peer(), UPDATE, base.key, (base.version,))
        value = {**base.value, "text": f"{base.value['text']} {attempt.word}"}
        ref = Ref(type=base.key.type, id=base.key.id)
        params = UpdateParams(meta=self._meta(attempt), data=UpdateData(ref=ref, value=value))
        return await self._settle(attempt, self.engine.update(params))

    async def delete(self, base: Attempt) -> Attempt:
        if base.version is None:
            return base
        attempt = self.account.attempt(self.account.new_peer(), DELETE, base.key, (base.version,))
        ref = Ref(type=base.key.type, id=base.key.id)
        params = DeleteParams(meta=self._meta(attempt), data=DeleteData(ref=ref))
        return await self._settle(attempt, self.engine.delete(params))

    async def ask(self, attempts: list[Attempt]) -> None:
        """Read, retrieve and subscribe; an answer must be right, a failure must be typed."""
        known = [attempt for attempt in attempts if attempt.version is not None]
        await asyncio.gather(*(self._read(attempt) for attempt in known[:3]))
        await asyncio.gather(*(self._find(attempt) for attempt in known[:3]))
        params = SubscribeParams(
            meta=meta_of("mira"), data=SubscribeData.model_validate({"after_cursor": "0"})
        )
        subscription = await typed(self.engine.subscribe(params))
        if subscription is not None:
            if known:
                await typed(subscription.next_events())
            subscription.close()

    async def _read(self, attempt: Attempt) -> None:
        ref = Ref(type=attempt.key.type, id=attempt.key.id)
        params = ReadParams(meta=meta_of(attempt.key.user), data=ReadData(ref=ref))
        reading = await typed(self.engine.read(params))
        if reading is not None:
            assert attempt.version in [view.version for view in reading.variants]

    async def _find(self, attempt: Attempt) -> None:
        data = RetrieveData.model_validate({"query": f'{{"text":"{attempt.word}"}}'})
        params = RetrieveParams(meta=meta_of(attempt.key.user), data=data)
        page = await typed(self.engine.retrieve(params))
        if page is not None:
            assert [hit.variants[0].id for hit in page.hits] == [attempt.key.id]

    def _meta(self, attempt: Attempt) -> dict[str, Any]:
        bases = {"base_versions": list(attempt.bases)} if attempt.bases else {}
        return meta_of(attempt.key.user, attempt=attempt.number, **bases)

    async def _settle(self, attempt: Attempt, answer: Awaitable[Any]) -> Attempt:
        try:
            result = await asyncio.wait_for(answer, PATIENCE)
        except OutcomeUnknownError:
            return attempt  # it may have been done
        except (EngineError, ProviderError):
            attempt.refusal = -1
        else:
            attempt.version = result.entity.version
            attempt.value = orjson.loads(result.entity.value_json or "null")
        self.account.told.append(attempt)
        return attempt


async def typed(answer: Awaitable[Any]) -> Any:
    """Return the answer, or None if it is a typed failure; anything else is raised."""
    try:
        return await asyncio.wait_for(answer, PATIENCE)
    except (EngineError, ProviderError):
        return None


@asynccontextmanager
async def desk_at(home: Path, disk: Disk | None, account: Account) -> AsyncGenerator[Desk]:
    """Yield a desk; afterwards its process is as good as killed."""
    provider = SqliteProvider(
        home / "data" / "patchouli.db", limits=LIMITS, index_limits=INDEX_LIMITS, disk=disk
    )
    policy = load_policy(home / "config.json")
    engine = await Engine.start(policy, provider, clock=SystemClock(), ids=SystemIds())
    try:
        yield Desk(engine, provider, account)
    finally:
        await provider.abandon()


async def work(desk: Desk) -> None:
    """Do some of everything, several at once."""
    keys = [Key("mira", "memo", f"m-{number}") for number in range(6)]
    keys += [Key("noor", "slip", f"s-{number}") for number in range(2)]
    created = await asyncio.gather(*(desk.create(key) for key in keys))
    await desk.ask(created)
    await asyncio.gather(
        *(desk.update(attempt) for attempt in created[:4]),
        *(desk.update(created[0]) for _ in range(3)),
        desk.delete(created[5]),
        desk.create(Key("mira", "memo", "m-9")),
    )
    await typed(desk.engine.checkpoint(None))
    await desk.ask(created[6:])


@pytest.fixture
def pattern(folder: Path) -> Path:
    return create_counted_home(folder / "pattern")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "part", ["patchouli.db-index", "patchouli.db"], ids=["the index", "the truth"]
)
async def test_any_call_of_the_disk_may_fail(
    folder: Path, pattern: Path, part: str, *, is_lasting: bool
) -> None:
    say_seed()
    for number in count(FIRST, STRIDE):
        home = shutil.copytree(pattern, folder / str(number))
        disk = FaultyDisk(
            IO_FAILURE, concerned=lambda call: ("-index" in call.path) == part.endswith("-index")
        )
        account = Account()
        async with desk_at(home, disk.disk, account) as desk:
            disk.fail(at=number, is_lasting=is_lasting)
            await work(desk)
            failed = list(disk.failed)
            disk.mend()
            after = await desk.create(Key("mira", "slip", "after"))
            assert after.version is not None, "a disk that was mended is used again"
            await desk.ask([after])
        disk.close()
        check_left(home, account)
        shutil.rmtree(home)
        if not failed:
            assert number > 20
            return


def check_left(home: Path, account: Account) -> None:
    """Hold what is left to the account, and the index to what is left."""
    database = home / "data" / "patchouli.db"
    check_database(database, account)
    with_index(database, home / "rebuilt")


CALLS: Final = ("open", "pwrite", "fsync", "ftruncate", "replace", "mkdir", "pread")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number_of_error", [errno.EIO, errno.ENOSPC])
async def test_any_call_of_the_artifact_files_may_fail(
    folder: Path, pattern: Path, monkeypatch: pytest.MonkeyPatch, number_of_error: int
) -> None:
    for number in count(FIRST, STRIDE):
        home = shutil.copytree(pattern, folder / str(number))
        calls = FailingCalls(number, number_of_error)
        content = b"content " * 1000
        async with desk_at(home, None, Account()) as desk:
            library = ArtifactLibrary(home / "data" / "artifacts")
            service = ArtifactService(
                library,
                desk.engine,
                node_id="local",
                limits=ArtifactLimits(),
                clock=SystemClock(),
                ids=SystemIds(),
            )
            with monkeypatch.context() as patch:
                for name in CALLS:
                    patch.setattr(os, name, calls.failing(getattr(os, name)))
                for _ in range(2):
                    await typed(upload(service, content))
            parts = list((home / "data" / "artifacts" / "uploads").iterdir())
            await upload(service, content)
            await service.aclose()
            stored = list((home / "data" / "artifacts" / "objects").rglob("??????*"))
            assert [path.read_bytes() for path in stored if path.is_file()] == [content]
            assert len(parts) <= 1, "an upload that failed may be there until its connection ends"
        if not calls.has_failed:
            assert number > 10
            return


class FailingCalls:
    """Calls of the system of which the n-th fails."""

    def __init__(self, number: int, error: int) -> None:
        self._left = number
        self._error = error
        self.has_failed = False

    def failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                self.has_failed = True
                raise OSError(self._error, os.strerror(self._error))
            return call(*arguments, **options)

        return replacement


async def upload(service: ArtifactService, content: bytes) -> None:
    """Upload in two chunks; what fails midway is given up, as by a connection that ends."""
    meta = meta_of("mira", attempt=0)
    begin = UploadBeginData.model_validate(
        {"media_type": "text/plain", "metadata": ARTIFACT_METADATA}
    )
    me = object()
    upload_id = await service.begin(me, UploadBeginParams(meta=meta, data=begin))
    try:
        half = len(content) // 2
        for offset in (0, half):
            data = UploadChunkData(
                upload_id=upload_id,
                offset=offset,
                bytes_base64=encode_chunk(content[offset : offset + half]),
            )
            await service.append(me, UploadChunkParams(meta=meta, data=data))
        params = UploadCommitParams(meta=meta, data=UploadCommitData(upload_id=upload_id))
        await service.commit(me, params)
    finally:
        await service.drop_connection(me)
