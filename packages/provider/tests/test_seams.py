from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.provider import SystemClock, SystemIds


def use_clock(monkeypatch: pytest.MonkeyPatch, milliseconds: list[int]) -> None:
    left = iter(milliseconds)
    clock = SimpleNamespace(time_ns=lambda: next(left) * 1_000_000)
    monkeypatch.setattr("patchouli.provider.seams.time", clock)


def test_entity_ids_are_random_uuids() -> None:
    first, second = SystemIds().entity_id(), SystemIds().entity_id()

    assert first != second
    assert str(uuid.UUID(first)) == first
    assert uuid.UUID(first).version == 4


def test_version_ids_are_uuids_that_carry_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    use_clock(monkeypatch, [1_700_000_000_123])

    made = uuid.UUID(SystemIds().version_id())

    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == 1_700_000_000_123


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=60))
def test_version_ids_ascend_whatever_the_clock_does(milliseconds: list[int]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_clock(monkeypatch, milliseconds)
        ids = SystemIds()

        made = [ids.version_id() for _ in milliseconds]

    assert made == sorted(set(made))
    assert all(uuid.UUID(i).version == 7 for i in made)


def test_more_ids_than_a_millisecond_has_room_for_still_ascend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_clock(monkeypatch, [1_700_000_000_000] * 5000)
    ids = SystemIds()

    made = [ids.version_id() for _ in range(5000)]

    assert made == sorted(set(made))
    assert uuid.UUID(made[-1]).int >> 80 == 1_700_000_000_001


def test_threads_never_get_the_same_id_and_each_sees_them_ascend() -> None:
    ids = SystemIds()
    made: list[list[str]] = [[] for _ in range(4)]
    start = threading.Barrier(4)

    def work(mine: list[str]) -> None:
        start.wait()
        mine.extend(ids.version_id() for _ in range(2000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(mine == sorted(mine) for mine in made)
    assert len({i for mine in made for i in mine}) == 8000


def test_the_system_clock_is_the_clock_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time_ns=lambda: 1_234_999_999, monotonic=lambda: 5.5)
    monkeypatch.setattr("patchouli.provider.seams.time", clock)

    assert SystemClock().unix_ms() == 1_234
    assert SystemClock().monotonic() == 5.5
