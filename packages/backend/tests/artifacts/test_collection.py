"""Collection of objects that nothing names, and the check of their bytes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import (
    ArtifactLibrary,
    ArtifactLimits,
    ArtifactService,
    ArtifactStoreError,
    CareSchedule,
    Caretaker,
    Checked,
    Collected,
    Engine,
    InvalidRequestError,
    check_objects,
    collect,
    load_policy,
)
from patchouli.backend.artifacts.library import Digest
from patchouli.protocol import (
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    Ref,
    UpdateData,
    UpdateParams,
)
from patchouli.provider import ScopeText, SystemIds
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from patchouli.provider import ReferencesPage, ReferencesPlan

SCOPE = ScopeText('{"team":"north"}')
OTHER = ScopeText('{"team":"south"}')
DAY_MS = 86_400_000

POLICY: dict[str, Any] = {
    "$schema": "./patchouli.schema.json",
    "version": 1,
    "retention": {"idempotency_seconds": 60, "changes_seconds": 60},
    "meta_fields": {
        "team": {"pointer": "/team", "schema": {"type": "string"}},
        "bases": {"pointer": "/bases", "schema": {"type": "array"}},
        "strategy": {"pointer": "/strategy", "schema": {"type": "string"}},
    },
    "entity_identity": {"scope_by": ["team"]},
    "entity_types": {
        "artifact": {
            "value_schema": {},
            "rules": [],
            "fallback": {
                "consistency": {
                    "snapshot": {"mode": "request"},
                    "acquire": {"allow_sources": ["authority"], "requirements": []},
                    "sessions": [],
                    "commit": {"ordering": {"kind": "none"}},
                },
                "idempotency": {"mode": "disabled"},
                "conflict": {
                    "default_strategy": "mvcc",
                    "strategy_from": "strategy",
                    "base_versions": "bases",
                    "merge": [],
                    "otherwise": "mvcc",
                },
                "publication": {"mode": "immediate"},
            },
        }
    },
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """A library whose objects entities of an engine name by hand."""

    def __init__(self, library: ArtifactLibrary, engine: Engine, provider: ModelProvider) -> None:
        self.library = library
        self.engine = engine
        self.provider = provider
        self.uploads = count()

    def put(self, content: bytes, *scopes: ScopeText, is_done: bool = True) -> Digest:
        """Publish `content`, grant it to the scopes, and let a week pass by."""
        upload = str(next(self.uploads))
        descriptor = self.library.create_part(upload)
        os.pwrite(descriptor, content, 0)
        digest = Digest(sha256(content).hexdigest())
        self.library.publish(upload, descriptor, digest, length=len(content))
        os.close(descriptor)
        for scope in scopes:
            self.library.grant(scope, digest)
        if is_done:
            self.library.forget(digest)
        self.age(digest)
        return digest

    def path(self, digest: Digest) -> Path:
        return self.library.root / "objects" / "sha256" / digest[:2] / digest[2:]

    def age(self, digest: Digest) -> None:
        os.utime(self.path(digest), (0, 0))

    def is_there(self, digest: Digest) -> bool:
        return self.path(digest).exists()

    async def create(self, name: str, digest: Digest, *, team: str = "north") -> str:
        data = CreateData(type="artifact", id=name, value=naming(digest))
        result = await self.engine.create(CreateParams(meta={"team": team}, data=data))
        return result.entity.version

    async def update(self, name: str, value: Any, base: str) -> str:
        data = UpdateData(ref=Ref(type="artifact", id=name), value=value)
        meta = {"team": "north", "bases": [base]}
        return (await self.engine.update(UpdateParams(meta=meta, data=data))).entity.version

    async def delete(self, name: str, base: str) -> None:
        data = DeleteData(ref=Ref(type="artifact", id=name))
        await self.engine.delete(DeleteParams(meta={"team": "north", "bases": [base]}, data=data))

    async def collect(self, **more: Any) -> Collected:
        return await collect(
            self.library, self.provider.read_references, before_unix_ms=DAY_MS, **more
        )


def naming(digest: str) -> Any:
    return {"placement": {"kind": "managed", "provider": "oak", "key": f"sha256/{digest}"}}


def grants(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "grants").rglob("*") if path.is_file())


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock()
    provider = ModelProvider(ModelStorage(), clock)
    engine = await Engine.start(
        load_policy(json.dumps(POLICY).encode()), provider, clock=clock, ids=SystemIds()
    )
    library = ArtifactLibrary(tmp_path / "artifacts")
    ArtifactService(
        library,
        engine,
        node_id="oak",
        limits=ArtifactLimits(),
        clock=clock,
        ids=SystemIds(),
    )
    yield Desk(library, engine, provider)
    await engine.shutdown()
    library.close()


async def test_what_nothing_names_goes_with_its_grants(desk: Desk) -> None:
    kept = desk.put(b"kept", SCOPE)
    gone = desk.put(b"gone!", SCOPE, OTHER)
    desk.put(b"", SCOPE)
    await desk.create("a", kept)
    desk.age(kept)

    done = await desk.collect()

    assert done == Collected(objects=3, young=0, removed=2, removed_bytes=5)
    assert desk.is_there(kept)
    assert not desk.is_there(gone)
    assert grants(desk.library.root) == [kept]
    with pytest.raises(InvalidRequestError):
        await desk.create("b", gone)


async def test_old_versions_and_deleted_artifacts_keep_their_bytes(desk: Desk) -> None:
    first, second, deleted = (desk.put(text, SCOPE) for text in (b"1", b"2", b"3"))
    base = await desk.create("a", first)
    await desk.update("a", naming(second), base)
    await desk.delete("b", await desk.create("b", deleted))
    for digest in (first, second, deleted):
        desk.age(digest)

    done = await desk.collect()

    assert done.removed == 0
    assert all(map(desk.is_there, (first, second, deleted)))


async def test_a_name_in_any_scope_keeps_the_bytes_and_all_grants(desk: Desk) -> None:
    digest = desk.put(b"shared", SCOPE, OTHER)
    await desk.create("a", digest, team="south")
    desk.age(digest)

    await desk.collect()

    assert desk.is_there(digest)
    assert grants(desk.library.root) == [digest, digest]


async def test_a_trial_counts_and_removes_nothing(desk: Desk) -> None:
    digest = desk.put(b"gone!", SCOPE)

    done = await desk.collect(is_trial=True)

    assert done == Collected(objects=1, young=0, removed=1, removed_bytes=5)
    assert desk.is_there(digest)
    assert grants(desk.library.root) == [digest]


async def test_more_candidates_than_one_look_takes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchouli.backend.artifacts.collection.MOST_CANDIDATES", 2)
    monkeypatch.setattr("patchouli.backend.artifacts.collection.ENTITIES_PER_PAGE", 1)
    digests = [desk.put(str(number).encode(), SCOPE) for number in range(9)]
    for number in range(0, 9, 2):
        await desk.create(str(number), digests[number])
        desk.age(digests[number])
    steps: list[float] = []

    done = await desk.collect(progress=steps.append)

    assert done.removed == 4
    assert [desk.is_there(digest) for digest in digests] == [n % 2 == 0 for n in range(9)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0.0, 1.0)


async def test_the_grace_time_ends_to_the_millisecond(desk: Desk) -> None:
    digest = desk.put(b"x")
    os.utime(desk.path(digest), ns=(0, DAY_MS * 1_000_000))

    assert (await desk.collect()).young == 1
    assert desk.is_there(digest)

    os.utime(desk.path(digest), ns=(0, DAY_MS * 1_000_000 - 1))
    assert (await desk.collect()).removed == 1


async def test_what_is_named_or_uploaded_while_the_store_is_looked_through_stays(
    desk: Desk,
) -> None:
    named, uploaded, granted = (desk.put(text, SCOPE) for text in (b"1", b"2", b"3"))
    other = desk.put(b"4", SCOPE)

    async def read_references(plan: ReferencesPlan) -> ReferencesPage:
        page = await desk.provider.read_references(plan)
        await desk.create("late", named)
        part = desk.library.create_part("late")
        os.pwrite(part, b"2", 0)
        desk.library.publish("late", part, uploaded, length=1)
        os.close(part)
        desk.library.grant(SCOPE, granted)
        return page

    done = await collect(desk.library, read_references, before_unix_ms=DAY_MS)

    assert done.removed == 1
    assert [desk.is_there(d) for d in (named, uploaded, granted, other)] == [True] * 3 + [False]
    assert len(grants(desk.library.root)) == 3


async def test_what_an_upload_has_published_stays_until_the_upload_is_done(desk: Desk) -> None:
    digest = desk.put(b"x", is_done=False)
    desk.put(b"x", is_done=False)

    assert (await desk.collect()).removed == 0
    desk.library.forget(digest)
    assert (await desk.collect()).removed == 0
    desk.library.forget(digest)
    assert (await desk.collect()).removed == 1


async def test_an_object_that_became_young_after_its_grants_went_stays(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = desk.put(b"x", SCOPE)
    of_scope = desk.library.grants([digest])[digest]

    def upload(path: Path) -> None:
        os.utime(desk.path(digest))

    monkeypatch.setattr("patchouli.backend.artifacts.library.sync_directory", upload)

    assert desk.library.remove(digest, of_scope, before_unix_ms=DAY_MS) is None
    assert desk.is_there(digest)


@pytest.mark.slow
async def test_a_failure_anywhere_loses_nothing_that_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes a name or makes one durable fails once."""
    kept = desk.put(b"kept", SCOPE)
    await desk.create("a", kept)
    unlink, fsync = Path.unlink, os.fsync
    for failing in count():
        gone = [desk.put(text, SCOPE, OTHER) for text in (b"1", b"2")]
        for digest in (kept, *gone):
            desk.age(digest)
        calls = count()

        def fail(failing: int = failing, calls: count[int] = calls) -> None:
            if next(calls) == failing:
                raise OSError(errno.EIO, "the disk")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", lambda path, **more: (fail(), unlink(path, **more)))
            patch.setattr(os, "fsync", lambda descriptor: (fail(), fsync(descriptor)))
            try:
                await desk.collect()
            except ArtifactStoreError:
                pass
            else:
                break

        assert desk.is_there(kept)
        assert all(desk.is_there(Digest(digest)) for digest in grants(desk.library.root))
        await desk.collect()
        assert not any(map(desk.is_there, gone))
        assert grants(desk.library.root) == [kept]
    assert failing > 8  # two grants, their two folders, the object and its folder, twice


async def test_foreign_files_among_the_objects_are_left_alone(desk: Desk) -> None:
    digest = desk.put(b"x")
    foreign = desk.path(digest).with_name("notes.txt")
    foreign.write_text("mine", encoding="utf-8")
    os.utime(foreign, (0, 0))

    done = await desk.collect()

    assert (done.objects, done.removed) == (1, 1)
    assert foreign.exists()


async def test_the_check_names_damaged_objects_and_changes_nothing(desk: Desk) -> None:
    contents = (b"", b"right", b"changed", b"cut", b"x" * (9 << 20))
    empty, right, changed, cut, long = map(desk.put, contents)
    desk.path(changed).write_bytes(b"Changed")
    desk.path(cut).write_bytes(b"cu")
    desk.path(long).write_bytes(b"x" * (9 << 20) + b"y")

    done = await check_objects(desk.library.root)

    assert done.objects == 5
    assert done.bytes == 5 + 7 + 2 + (9 << 20) + 1
    assert set(done.damaged) == {changed, cut, long}
    assert desk.path(changed).read_bytes() == b"Changed"
    assert desk.is_there(empty)
    assert desk.is_there(right)


async def test_an_object_that_cannot_be_read_counts_as_damaged(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = desk.put(b"x")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr("patchouli.backend.artifacts.library.open_private", refuse)

    assert (await check_objects(desk.library.root)).damaged == (digest,)


def caretaker(desk: Desk, schedule: CareSchedule, clock: ManualClock, told: list[Any]) -> Caretaker:
    return Caretaker(
        desk.library,
        desk.provider.read_references,
        incarnation="first",
        schedule=schedule,
        clock=clock,
        tell=told.append,
    )


@pytest.mark.slow
async def test_a_database_that_is_new_to_the_library_gets_the_grace_time(desk: Desk) -> None:
    digest = desk.put(b"x")
    clock = ManualClock()
    care = caretaker(desk, CareSchedule(grace_seconds=3600), clock, [])

    assert await care.collect() is None
    clock.now_unix_ms += 3_599_999
    assert await care.collect() is None
    desk.library.serves_since("another", now_unix_ms=clock.now_unix_ms)
    clock.now_unix_ms += 1
    assert await care.collect() is None
    assert desk.is_there(digest)

    clock.now_unix_ms += 3_600_000
    done = await care.collect()
    assert done is not None
    assert done.removed == 1


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"incarnation":"first"}'])
async def test_a_note_that_cannot_be_read_counts_as_none(desk: Desk, text: bytes) -> None:
    (desk.library.root / "database").write_bytes(text)

    assert desk.library.serves_since("first", now_unix_ms=7) == 7
    assert desk.library.serves_since("first", now_unix_ms=9) == 7


@pytest.mark.slow
async def test_the_timer_goes_through_the_objects_by_turns_and_ends_when_told(
    desk: Desk,
) -> None:
    desk.path(desk.put(b"x")).write_bytes(b"y")
    found = asyncio.Event()
    told: list[Any] = []

    def tell(result: Collected | Checked | Exception) -> None:
        told.append(result)
        if isinstance(result, Checked) and result.damaged:
            found.set()

    class Clock(ManualClock):
        """One that goes on by a turn whenever it is looked at."""

        def unix_ms(self) -> int:
            self.now_unix_ms += 3
            return self.now_unix_ms

    care = Caretaker(
        desk.library,
        desk.provider.read_references,
        incarnation="first",
        schedule=CareSchedule(collect_seconds=0, check_seconds=1),
        clock=Clock(),
        tell=tell,
    )
    care.start()
    await asyncio.wait_for(found.wait(), 10)
    await care.aclose()

    assert all(isinstance(result, Checked) for result in told)


async def test_a_failure_is_told_and_the_next_turn_comes(desk: Desk) -> None:
    told: list[Any] = []
    twice = asyncio.Event()

    def tell(result: Collected | Checked | Exception) -> None:
        told.append(result)
        if len(told) == 2:
            twice.set()

    async def refuse(_: ReferencesPlan) -> ReferencesPage:
        raise AssertionError("it is not asked")

    care = Caretaker(
        desk.library,
        refuse,
        incarnation="first",
        schedule=CareSchedule(collect_seconds=0, check_seconds=1),
        clock=ManualClock(),
        tell=tell,
    )
    objects = desk.library.root / "objects" / "sha256"
    for shard in range(256):
        (objects / f"{shard:02x}").write_bytes(b"no directory")
    care.start()
    await asyncio.wait_for(twice.wait(), 10)
    await care.aclose()

    assert all(isinstance(result, ArtifactStoreError) for result in told)
