"""A disk that fails at any call, a disk that is full, and a power loss after any answer.

Each test runs the same script of commits, notes what was answered, and opens what is left with a
sound disk: what was acknowledged is there, what was refused is not, and all invariants hold.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from random import Random  # noqa: TID251 - seeded, and the seed is written below
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import (
    Committed,
    CompactionPlan,
    OutcomeUnknownError,
    ProviderError,
    Replayed,
    Retention,
    ScopeText,
    StoreFullError,
    UnavailableError,
    VersionId,
)
from patchouli.provider_conformance import check_visible_state
from patchouli.provider_conformance.asking import all_changes, reading
from patchouli.provider_conformance.builders import (
    FOREVER,
    OTHER_SCOPE,
    SCOPE,
    ManualClock,
    commit,
    control,
    entity,
    probe,
    read,
    record,
    tombstone,
    version,
)
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.testing import (
    DISK_FULL,
    IO_FAILURE,
    FaultyDisk,
    ForgetfulDisk,
    check_truth,
)

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider import Commit, EntityKey, Provider
    from patchouli.provider_sqlite import Disk
    from patchouli.provider_sqlite.testing import DiskCall

STEPS = 7
ONLY_SYNC = {"sync": IO_FAILURE["sync"]}
CHANGING = {kind: code for kind, code in IO_FAILURE.items() if kind not in {"open", "read"}}
SMALL = SqliteLimits(log_pages_soft=20, log_pages_turn=30, log_pages_hard=40)


@dataclass
class Story:
    """What a run of the script was told, and what may therefore be found afterwards."""

    heads: dict[EntityKey, tuple[VersionId, ...]] = field(default_factory=dict)
    open_ends: dict[EntityKey, list[tuple[VersionId, ...]]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def next_commit(self, step: int) -> Commit:
        """Return a create, an update, a conflict, its resolution or a deletion."""
        scope: ScopeText = OTHER_SCOPE if step % 4 == 3 else SCOPE
        key = entity("abc"[step % 3], scope=scope)
        present = self.heads.get(key, ())
        new = VersionId(f"v{step}")
        control_of = {
            "idempotency": record(control(f"token-{new}"), result_json=f'"{new}"'),
            "write_sessions": (control("session", scope=scope),),
        }
        if step % 5 == 4 and present:
            made = version(new, "x" * 3000, parents=present[:1])
            return commit(key, made, expected=present, heads=[*present, new], **control_of)
        if step % 7 == 6 and present:
            return commit(key, tombstone(new, parents=present), expected=present, **control_of)
        made = version(new, {"n": step}, parents=present)
        return commit(key, made, expected=present, **control_of)

    async def run(self, provider: Provider, steps: range) -> None:
        """Do some steps of the script and note their answers."""
        for step in steps:
            asked = self.next_commit(step)
            try:
                outcome = await provider.commit(asked)
            except OutcomeUnknownError:
                self.open_ends.setdefault(asked.key, []).append(asked.head_versions)
                found = await provider.read(read(asked.key))
                self.heads[asked.key] = tuple(head.id for head in found.heads)
            except ProviderError:
                self.refused.add(asked.causal_token)
            else:
                assert isinstance(outcome, Committed), outcome
                self.kept.add(asked.causal_token)
                self.heads[asked.key] = asked.head_versions
                self.open_ends.pop(asked.key, None)

    async def check(self, provider: Provider) -> None:
        """Compare with what is there."""
        published: set[str] = set()
        for scope in (SCOPE, OTHER_SCOPE):
            await check_visible_state(provider, scope)
            published |= {change.causal_token for change in await all_changes(provider, scope)}
        assert self.kept <= published, "what was acknowledged is there"
        assert published.isdisjoint(self.refused), "what was refused is not"
        for token in self.kept | self.refused:
            question = probe(control(token))
            known = (await reading(provider, read(entity(), idempotency=question))).record
            assert isinstance(known, Replayed) == (token in published), "a record is its mutation"
        for key, heads in self.heads.items():
            found = await reading(provider, read(key))
            possible = [heads, *self.open_ends.get(key, ())]
            assert {head.id for head in found.heads} in [set(ids) for ids in possible]


def at(path: Path, *, disk: Disk | None = None, limits: SqliteLimits = SMALL) -> SqliteProvider:
    return SqliteProvider(path / "db", clock=ManualClock(), disk=disk, limits=limits)


async def look(path: Path, story: Story) -> None:
    """Check the files in `path` as a new run finds them, and as it leaves them."""
    provider = at(path)
    await provider.initialize(FOREVER)
    try:
        await story.check(provider)
        await story.run(provider, range(100, 102))
        assert {"token-v100", "token-v101"} <= story.kept
        await story.check(provider)
    finally:
        await provider.shutdown()
    check_truth(path / "db")


def of_the_truth(call: DiskCall) -> bool:
    """Leave the index out: it is derived, and its thread comes when it likes."""
    return "-index" not in call.path


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_any_call_of_the_start_may_fail(tmp_path: Path) -> None:
    for number in count():
        home = tmp_path / str(number)
        disk = FaultyDisk(concerned=of_the_truth)
        disk.fail(at=number)
        provider: SqliteProvider | None = None
        try:
            provider = at(home, disk=disk.disk)
            await provider.initialize(FOREVER)
        except UnavailableError:
            assert disk.failed, "only the disk may be the reason"
        has_failed = bool(disk.failed)
        disk.mend()
        if provider is not None:
            await provider.abandon()
        disk.close()
        await look(home, Story())
        if not has_failed:
            assert number > 10, "a start makes and syncs files"
            return


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_any_call_of_the_commits_may_fail(tmp_path: Path) -> None:
    for number in count():
        home = tmp_path / str(number)
        disk = FaultyDisk(CHANGING, concerned=of_the_truth)
        story = Story()
        provider = at(home, disk=disk.disk, limits=SqliteLimits())
        await provider.initialize(FOREVER)
        disk.fail(at=number)
        await story.run(provider, range(STEPS))
        has_failed = bool(disk.failed)
        disk.mend()
        await story.check(provider)
        await provider.abandon()
        disk.close()
        await look(home, story)
        if not has_failed:
            assert number > 2 * STEPS, "each commit writes and syncs"
            return


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_any_call_of_the_stop_may_fail(tmp_path: Path) -> None:
    for number in count():
        home = tmp_path / str(number)
        disk = FaultyDisk(CHANGING, concerned=of_the_truth)
        story = Story()
        provider = at(home, disk=disk.disk)
        await provider.initialize(FOREVER)
        await story.run(provider, range(STEPS))
        disk.fail(at=number)
        try:
            await provider.shutdown()
        except ProviderError:
            assert disk.failed, "only the disk may be the reason"
        disk.close()
        await look(home, story)
        if not disk.failed:
            assert number > 2, "a stop is written down and empties the log"
            return


async def test_a_disk_that_stays_broken_keeps_nobody_waiting(tmp_path: Path) -> None:
    disk = FaultyDisk(CHANGING, concerned=of_the_truth)
    story = Story()
    provider = at(tmp_path, disk=disk.disk)
    await provider.initialize(FOREVER)
    await story.run(provider, range(4))

    disk.fail(at=0, is_lasting=True)
    await story.run(provider, range(4, STEPS))
    with pytest.raises(ProviderError):
        await provider.shutdown()

    disk.close()
    assert story.kept == {f"token-v{step}" for step in range(4)}
    await look(tmp_path, story)


async def test_a_full_disk_loses_nothing_and_works_again_when_there_is_room(tmp_path: Path) -> None:
    disk = FaultyDisk(DISK_FULL, concerned=of_the_truth)
    story = Story()
    provider = at(tmp_path, disk=disk.disk)
    await provider.initialize(FOREVER)
    await story.run(provider, range(3))

    disk.fail(at=0, is_lasting=True)
    with pytest.raises(StoreFullError):
        await provider.commit(story.next_commit(3))
    await story.run(provider, range(3, 5))
    await story.check(provider)
    disk.mend()
    await story.run(provider, range(5, STEPS))
    await story.check(provider)
    await provider.shutdown()

    disk.close()
    assert story.refused == {"token-v3", "token-v4"}
    await look(tmp_path, story)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_power_loss_after_any_answer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    story = Story()
    provider = at(tmp_path / "live", disk=disk.disk)
    await provider.initialize(FOREVER)
    chance = Random(20)  # noqa: S311 - which unsynced writes survive
    left: list[tuple[Path, Story]] = []
    for step in range(2 * STEPS):
        await story.run(provider, range(step, step + 1))
        for name, survives in (
            ("nothing", lambda _: False),
            ("everything", lambda _: True),
            ("something", lambda _: chance.random() < 0.5),
        ):
            image = tmp_path / f"{step}-{name}"
            disk.lose_power(image, survives=survives)
            left.append((image, deepcopy(story)))
        if step == STEPS:
            await provider.checkpoint()
    await provider.shutdown()
    disk.close()

    for image, then in left:
        await look(image, then)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_power_loss_at_any_step_of_a_compaction_leaves_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    disk, clock = ForgetfulDisk(), ManualClock()
    story = Story()
    provider = SqliteProvider(tmp_path / "live" / "db", clock=clock, disk=disk.disk, limits=SMALL)
    await provider.initialize(
        Retention(changes_seconds=60, idempotency_seconds=60, history_seconds=60)
    )
    await story.run(provider, range(2 * STEPS))
    clock.now_unix_ms += 60_001
    images: list[Path] = []
    removed = 0
    while True:
        step = await provider.compact(CompactionPlan(limit=3))
        removed += step.changes + step.versions
        image = tmp_path / f"after-{len(images)}"
        disk.lose_power(image)
        images.append(image)
        if not step.is_more_due:
            break
    assert removed > 2 * STEPS
    assert isinstance(await provider.commit(story.next_commit(2 * STEPS)), Committed)
    await provider.shutdown()
    disk.close()

    for image in images:
        check_truth(image / "db")
        again = at(image)
        await again.initialize(FOREVER)
        for key, heads in story.heads.items():
            found = await reading(again, read(key))
            assert {head.id for head in found.heads} == set(heads)
        await again.shutdown()


async def test_the_disk_of_the_power_loss_forgets_what_was_not_synced(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    connection = apsw.Connection(str(tmp_path / "db"), vfs=disk.disk.vfs)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL").fetchall()
    connection.execute("CREATE TABLE t (x)")
    assert disk.disk.sync_directory is not None
    disk.disk.sync_directory(tmp_path)
    connection.execute("INSERT INTO t VALUES (1)")
    connection.wal_checkpoint()
    connection.execute("INSERT INTO t VALUES (2)")

    disk.lose_power(tmp_path / "left")

    connection.close()
    disk.close()
    left = apsw.Connection(str(tmp_path / "left" / "db"))
    assert left.execute("SELECT x FROM t").get == 1, "a commit without a sync is lost"
    left.close()


async def test_a_commit_refused_for_its_sync_does_not_come_back(tmp_path: Path) -> None:
    disk = FaultyDisk(ONLY_SYNC, concerned=of_the_truth)
    story = Story()
    provider = at(tmp_path / "live", disk=disk.disk, limits=SqliteLimits())
    await provider.initialize(FOREVER)
    await story.run(provider, range(3))

    disk.fail(at=0)
    with pytest.raises(UnavailableError) as refusal:
        await provider.commit(story.next_commit(3))
    killed = killed_copy(tmp_path / "live", tmp_path / "killed")
    await provider.abandon()

    disk.close()
    assert not isinstance(refusal.value, OutcomeUnknownError), "the log was overwritten"
    story.refused.add("token-v3")
    await look(killed, story)


async def test_a_commit_of_which_nothing_is_certain_says_so(tmp_path: Path) -> None:
    disk = FaultyDisk(ONLY_SYNC, concerned=of_the_truth)
    story = Story()
    provider = at(tmp_path / "live", disk=disk.disk, limits=SqliteLimits())
    await provider.initialize(FOREVER)
    await story.run(provider, range(3))
    asked = story.next_commit(3)

    disk.fail(at=0, is_lasting=True)
    with pytest.raises(OutcomeUnknownError):
        await provider.commit(asked)
    killed = killed_copy(tmp_path / "live", tmp_path / "killed")
    disk.mend()
    story.open_ends[asked.key] = [asked.head_versions]
    then = deepcopy(story)
    await story.check(provider)
    await story.run(provider, range(4, STEPS))
    await provider.shutdown()

    disk.close()
    await look(killed, then)
    await look(tmp_path / "live", story)


def killed_copy(live: Path, target: Path) -> Path:
    """Copy what the process has handed to the system: what a kill of it would leave."""
    target.mkdir(mode=0o700)
    for name in ("db", "db-wal", "db.lock"):
        copy = target / name
        copy.write_bytes((live / name).read_bytes())
        copy.chmod(0o600)
    return target
