"""Many threads at once: the interpreter's lock is free during work, and documents stay whole."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from patchouli.automerge import CorruptDocumentError, Document, JoinNode, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORDS = [f"word{number}" for number in range(4_000)]


@pytest.fixture
def no_switches() -> Iterator[None]:
    """Threads get the interpreter only when the running one gives it up by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    yield
    sys.setswitchinterval(interval)


def runs_beside(work: Callable[[], object]) -> bool:
    """Whether another thread gets to run between the start and the end of `work`.

    The other thread can only have the interpreter if this one gives it up, and the one call
    between the two marks is `work`.
    """
    marks: list[str] = []
    ready = threading.Barrier(2)

    def other() -> None:
        ready.wait()
        marks.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    marks.append("start")
    work()
    marks.append("end")
    thread.join()
    return marks == ["start", "other", "end"]


def long_join() -> str:
    one, other = list(WORDS), list(WORDS)
    one[::20] = ["ONE"] * len(one[::20])
    other[10::20] = ["OTHER"] * len(other[10::20])
    nodes = [
        JoinNode(version="b", parents=(), json=json.dumps(" ".join(WORDS))),
        JoinNode(version="x", parents=("b",), json=json.dumps(" ".join(one))),
        JoinNode(version="y", parents=("b",), json=json.dumps(" ".join(other))),
    ]
    return join(path="", base="b", nodes=nodes, candidates=["x", "y"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_switches")
@pytest.mark.parametrize("call", ["join", "from_json", "replace", "merge", "json", "save", "load"])
def test_other_threads_run_meanwhile(call: str) -> None:
    text = json.dumps(" ".join(WORDS))
    made = Document.from_json(text, actor=b"a")
    fork = made.fork()
    fork.replace(json.dumps(" ".join(WORDS[::2])), actor=b"b")
    saved = made.save()
    works: dict[str, Callable[[], object]] = {
        "join": long_join,
        "from_json": lambda: Document.from_json(text, actor=b"a"),
        "replace": lambda: made.fork().replace(json.dumps(" ".join(WORDS[::3])), actor=b"c"),
        "merge": lambda: made.fork().merge(fork),
        "json": made.json,
        "save": made.save,
        "load": lambda: Document.load(saved),
    }

    # Who comes first after the barrier is open, so one meeting in many tries shows it.
    assert any(runs_beside(works[call]) for _ in range(50))


@pytest.mark.usefixtures("no_switches")
def test_the_measure_tells_when_the_lock_is_held() -> None:
    assert not any(runs_beside(lambda: sum(range(300_000))) for _ in range(10))


@pytest.mark.slow
def test_joins_in_many_threads_agree() -> None:
    expected = long_join()

    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(long_join) for _ in range(16)]

    assert {result.result() for result in results} == {expected}


@pytest.mark.slow
def test_one_document_may_be_used_by_many_threads() -> None:
    made = Document.from_json('{"text":"start"}', actor=b"first")
    forks = [made.fork() for _ in range(8)]

    def use(number: int) -> None:
        fork = forks[number]
        for step in range(10):
            fork.replace(json.dumps({"text": f"start {number} {step}"}), actor=bytes([number + 1]))
            made.merge(fork)
            fork.merge(forks[(number + 1) % 8])
            json.loads(made.json())

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(use, number) for number in range(8)]:
            done.result()

    for fork in forks:
        made.merge(fork)
    assert Document.load(made.save()).json() == made.json()


def test_documents_that_merge_with_each_other_do_not_wait_for_each_other() -> None:
    one = Document.from_json('"a"', actor=b"a")
    other = Document.from_json('"b"', actor=b"b")

    def merge(into: Document, source: Document) -> None:
        for _ in range(200):
            into.merge(source)

    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(merge, *pair) for pair in ((one, other), (other, one)) * 2]
        for each in done:
            each.result(timeout=30)

    assert one.heads() == other.heads()


def test_errors_in_threads_reach_their_callers_alone() -> None:
    good = Document.from_json('"a"', actor=b"a").save()

    def load(number: int) -> str:
        data = good if number % 2 else good[:-1]
        try:
            return Document.load(data).json()
        except CorruptDocumentError:
            return "refused"

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(load, range(64)))

    assert results == ["refused", '"a"'] * 32
