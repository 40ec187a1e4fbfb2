"""What is measured of the daemon. Scenarios run in the order of `ALL` on one growing database."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from hashlib import sha256

from benchmarks import echo
from benchmarks.daemon import COMMAND, Daemon, running
from benchmarks.fanout import Subscribers
from benchmarks.load import Figures, Lines, Load, run
from benchmarks.peer import Peer, median, timed
from benchmarks.promises import UNITS, promises
from benchmarks.state import Run
from benchmarks.values import (
    HANDSHAKE,
    create,
    read,
    request,
    retrieve,
    text_of,
    update,
    value_of,
    value_text,
)

CONNECTIONS = (1, 8, 64)
WIRE = Lines(HANDSHAKE)
QUERIES = {
    "text, one word": lambda n: {"text": f"ref{n:07d}"},
    "text, two Chinese characters": lambda n: {"text": "靠窗", "order": "newest"},
    "text, two letters": lambda n: {"text": f"{n % 90 + 10}", "order": "newest"},
    "equality, one match": lambda n: {"where": {"/metadata/core/origin/native_id": f"m-{n}"}},
    "equality, one of a thousand": lambda n: {
        "where": {"/metadata/extensions/acme.mail/folder": f"folder-{n % 1000}"}
    },
    "range": lambda n: {
        "where": {"/metadata/extensions/acme.mail/rank": {"$gte": n, "$lt": n + 50}}
    },
    "text and equality": lambda n: {
        "text": f"ref{n:07d}",
        "where": {"/profile/epistemic": "belief"},
    },
    "newest": lambda n: {},
}
SELECTIVE = tuple(name for name in QUERIES if name != "range")


def ceiling(run_: Run) -> None:
    """An echo server on the same transport with the same client."""
    line = read(0)[:-2] + b" " * 1000 + b"}\n"
    with echo.server(run_.folder) as socket:
        for connections in CONNECTIONS:
            count = (20_000 if connections == 1 else 120_000) // connections
            load = Load(socket, Lines(), connections, lambda _, n=count: iter([line] * n))
            run_.keep_load("echo", f"{connections} connections", run(load))


def growth(run_: Run) -> None:
    """Creates by 64 connections up to each size, then retrieval at that size."""
    done = 0
    for size in run_.sizes:
        with running(run_.home) as daemon:
            numbers = range(done, size)
            load = Load(daemon.socket, WIRE, 64, lambda k, r=numbers: map(create, r[k::64]))
            started = time.perf_counter()
            figures = run_.keep_load("creates to", f"{size} entities", run(load))
            with Peer(daemon.socket) as peer:
                peer.result(request("control.checkpoint", "{}"))
                preparation = time.perf_counter() - started - figures.seconds
                run_.keep(
                    "creates to",
                    f"{size} entities, index caught up, rate",
                    len(numbers) / (figures.seconds + min(preparation, _catch_up(peer))),
                    "/s",
                )
                _retrieval(run_, peer, size)
        done = size
    run_.found["entities"] = done


def _catch_up(peer: Peer) -> float:
    """Return the seconds of one more flush: what was left over after the one before."""
    started = time.perf_counter()
    peer.result(request("control.checkpoint", "{}"))
    return time.perf_counter() - started


def _retrieval(run_: Run, peer: Peer, size: int) -> None:
    for name, instruction in QUERIES.items():
        numbers = range(7, size, max(1, size // 60))
        times = timed(peer.result, (retrieve(instruction(n)) for n in numbers))
        run_.keep("retrieval", f"{name}, {size} entities, median", median(times), "ms")


def steady(run_: Run) -> None:
    """Creates, reads and sequential updates by connections, on the grown database."""
    size = int(run_.found["entities"])
    with running(run_.home) as daemon:
        for connections in CONNECTIONS:
            prefix = f"s{connections}"
            count = 2_000 if connections == 1 else 20_000
            loads = {
                "creates": Load(
                    daemon.socket,
                    WIRE,
                    connections,
                    lambda k, c=connections, n=count, p=prefix: (
                        create(i, prefix=p) for i in range(k, n, c)
                    ),
                ),
                "reads": Load(
                    daemon.socket,
                    WIRE,
                    connections,
                    lambda k, c=connections, n=count: (
                        read(i * 7919 % size) for i in range(k, 3 * n, c)
                    ),
                ),
                "updates": Load(
                    daemon.socket,
                    WIRE,
                    connections,
                    lambda k, c=connections, n=count, p=prefix: _updates(range(k, n // 2, c), p),
                    needs_replies=True,
                ),
            }
            for name, load in loads.items():
                run_.keep_load(name, f"{connections} connections", run(load))


def _updates(numbers: range, prefix: str) -> Iterator[bytes]:
    """Read each entity once, then update it on its head; only the update waits for the disk."""
    for number in numbers:
        reply = yield read(number, prefix=prefix)
        version = reply.partition(b'"version":"')[2].partition(b'"')[0].decode()
        reply = yield update(number, version, value_text(number + 1), prefix=prefix)
        if b'"result"' not in reply:
            raise RuntimeError(reply)


def sequential(run_: Run) -> None:
    """Create, update on the head, and joining update, one by one on one connection."""
    with running(run_.home) as daemon, Peer(daemon.socket) as peer:
        creates, updates, joins = [], [], []
        for number in range(1500):
            value = value_of(number)
            started = time.perf_counter()
            base = peer.version(create(number, prefix="q"))
            created = time.perf_counter()
            head = peer.version(update(number, base, value_text(number + 1), prefix="q"))
            creates.append((created - started) * 1000)
            updates.append((time.perf_counter() - created) * 1000)
            text = " ".join(text_of(number).split()[:22])
            value["content"] = {"kind": "text", "text": text}
            base = peer.version(update(number, head, json.dumps(value), prefix="q"))
            value["content"] = {"kind": "text", "text": text.replace(" ", " early ", 1)}
            peer.version(update(number, base, json.dumps(value), prefix="q"))
            value["content"] = {"kind": "text", "text": text + " late"}
            started = time.perf_counter()
            joined = peer.result(update(number, base, json.dumps(value), prefix="q"))
            joins.append((time.perf_counter() - started) * 1000)
            merged = joined["entity"]["value"]["content"]["text"]
            if not (" early " in merged and merged.endswith(" late")):
                raise RuntimeError(f"not merged: {merged}")
        run_.keep("one connection", "create, median", median(creates), "ms")
        run_.keep("one connection", "update on the head, median", median(updates), "ms")
        run_.keep("one connection", "joining update, rate", 1000 / median(joins), "/s")


def history(run_: Run) -> None:
    """Read and update of one entity after one and after 10,000 updates."""
    with running(run_.home) as daemon, Peer(daemon.socket) as peer:
        version = peer.version(create(1, prefix="h"))

        def advance(times: int) -> list[float]:
            nonlocal version
            taken = []
            for index in range(times):
                line = update(1, version, value_text(index), prefix="h")
                started = time.perf_counter()
                version = peer.version(line)
                taken.append((time.perf_counter() - started) * 1000)
            return taken

        first = median(advance(500))
        first_read = median(timed(peer.ask, [read(1, prefix="h")] * 2000))
        advance(9_000)
        last = median(advance(500))
        last_read = median(timed(peer.ask, [read(1, prefix="h")] * 2000))
        run_.keep("history", "update, first 500", first, "ms")
        run_.keep("history", "update, after 9,500", last, "ms")
        run_.keep("history", "read after 500 updates", first_read, "ms")
        run_.keep("history", "read after 10,000 updates", last_read, "ms")


def fan_out(run_: Run) -> None:
    """Creates by 8 connections with 0, 1, 10 and 100 subscribers of their scope."""
    with running(run_.home) as daemon:
        for subscribers in (0, 1, 10, 100):
            count = 4_000
            counting = (
                Subscribers(daemon.socket, subscribers=subscribers, expected=count)
                if subscribers
                else None
            )
            load = Load(
                daemon.socket,
                WIRE,
                8,
                lambda k, n=count, s=subscribers: (
                    create(i, prefix=f"f{s}") for i in range(k, n, 8)
                ),
                processes=1,
            )
            started = time.perf_counter()
            figures = run(load)
            run_.keep("fan-out", f"creates with {subscribers} subscribers", figures.rate, "/s")
            if counting is not None:
                # The load process prepares its requests first, so its own clock says when it began.
                ended = counting.finished_at()
                elapsed = max(figures.seconds, ended - started - _preparation(started, figures))
                run_.keep(
                    "fan-out",
                    f"events to {subscribers} subscribers",
                    count * subscribers / elapsed,
                    "/s",
                )


def _preparation(started: float, figures: Figures) -> float:
    return max(0.0, time.perf_counter() - started - figures.seconds - 0.5)


def artifacts(run_: Run) -> None:
    """Upload and download of 64 MiB in the largest chunks."""
    size, chunk = 64 << 20, 524288
    content = bytes(range(256)) * (chunk // 256)
    metadata = value_of(1)["metadata"]
    metadata["core"]["schema"] = "patchouli.artifact@1"
    begin = {
        "id": "big",
        "media_type": "application/octet-stream",
        "name": None,
        "expected_byte_length": size,
        "expected_digest": None,
        "metadata": metadata,
    }
    body = base64.b64encode(content).decode()
    with running(run_.home) as daemon, Peer(daemon.socket) as peer:
        upload = peer.result(request("artifact.upload.begin", json.dumps(begin)))["upload_id"]
        started = time.perf_counter()
        for offset in range(0, size, chunk):
            peer.result(
                request(
                    "artifact.upload.chunk",
                    f'{{"upload_id":"{upload}","offset":{offset},"bytes_base64":"{body}"}}',
                )
            )
        entity = peer.result(request("artifact.upload.commit", f'{{"upload_id":"{upload}"}}'))
        run_.keep("artifacts", "upload", 64 / (time.perf_counter() - started), "MiB/s")
        expected = sha256(content * (size // chunk)).hexdigest()
        if entity["entity"]["value"]["digest"] != f"sha256:{expected}":
            raise RuntimeError("the artifact has another digest")
        started = time.perf_counter()
        for offset in range(0, size, chunk):
            peer.result(
                request(
                    "artifact.download.chunk",
                    f'{{"id":"big","version":null,"offset":{offset},"max_bytes":{chunk}}}',
                )
            )
        run_.keep("artifacts", "download", 64 / (time.perf_counter() - started), "MiB/s")


def idle(run_: Run) -> None:
    """Start and memory on the grown database, and what the status command takes."""
    with running(run_.home) as daemon:
        run_.keep("idle", "ready after start", daemon.ready_seconds, "s")
        run_.keep("idle", "resident memory", daemon.resident_kib() / 1024, "MiB")
        times = []
        for _ in range(5):
            started = time.perf_counter()
            subprocess.run(
                [COMMAND, "status", "--endpoint", str(daemon.socket)],
                check=True,
                capture_output=True,
            )
            times.append(time.perf_counter() - started)
        run_.keep("idle", "status command", median(times), "s")
        requests = 1_000_000 if run_.is_long else 100_000
        size = int(run_.found["entities"])
        before = _after_reads(daemon, 20_000, size)
        after = _after_reads(daemon, requests, size)
        run_.keep("idle", f"memory growth over {requests} requests", (after - before) / 1024, "MiB")


def _after_reads(daemon: Daemon, count: int, size: int) -> int:
    load = Load(
        daemon.socket,
        WIRE,
        16,
        lambda k: (read(i * 7919 % size) for i in range(k, count, 16)),
    )
    run(load)
    return daemon.resident_kib()


def million(run_: Run) -> None:
    """Creates when a million changes were made before (only with --long)."""
    if not run_.is_long:
        return
    with running(run_.folder / "million") as daemon:
        for start, stop in (
            (0, 1_000),
            (1_000, 11_000),
            (11_000, 1_000_000),
            (1_000_000, 1_010_000),
        ):
            load = Load(
                daemon.socket,
                WIRE,
                64,
                lambda k, r=range(start, stop): map(create, r[k::64]),
            )
            run_.keep_load("million", f"creates {start} to {stop}", run(load))


ALL: dict[str, Callable[[Run], None]] = {
    "ceiling": ceiling,
    "growth": growth,
    "steady": steady,
    "sequential": sequential,
    "history": history,
    "promises": promises,
    "fan_out": fan_out,
    "artifacts": artifacts,
    "idle": idle,
    "million": million,
}


def judge(run_: Run) -> None:
    """Hold the figures that were taken against the targets."""
    found, report = run_.found, run_.report

    def ratio(above: str, below: str) -> float | None:
        return found[above] / found[below] if above in found and below in found else None

    def at_least(name: str, measured: float | None, bound: float, unit: str = "") -> None:
        if measured is not None:
            report.at_least(name, measured, bound, unit)

    def at_most(name: str, measured: float | None, bound: float, unit: str = "") -> None:
        if measured is not None:
            report.at_most(name, measured, bound, unit)

    print("\n== targets")
    size, before = run_.sizes[-1], run_.sizes[-2] if len(run_.sizes) > 1 else run_.sizes[-1]
    ours = f"creates to: {size} entities, index caught up, rate"
    at_least(
        f"creates, 64 connections, to {size}, indexes caught up / PostgreSQL",
        ratio(ours, f"PostgreSQL: creates to {size}, rate"),
        1.5,
    )
    at_least("the same / LangGraph's durable puts", ratio(ours, "LangGraph: durable puts"), 4.0)
    at_most(
        "creates, 64 connections: p99 / median",
        ratio(f"creates to: {size} entities, p99", f"creates to: {size} entities, median"),
        5.0,
    )
    reads = "reads: 64 connections, rate"
    at_least(
        "reads, 64 connections / PostgreSQL",
        ratio(reads, "PostgreSQL: reads, 64 connections, rate"),
        0.8,
    )
    at_least("reads, 64 connections / echo", ratio(reads, "echo: 64 connections, rate"), 0.3)
    for name in ("creates", "reads"):
        at_least(
            f"{name}, one connection / PostgreSQL",
            ratio(f"{name}: 1 connections, rate", f"PostgreSQL: {name}, 1 connections, rate"),
            1.0,
        )
    at_most(
        "sequential update / create",
        ratio("one connection: update on the head, median", "one connection: create, median"),
        1.3,
    )
    at_least(
        "joining updates, one connection",
        found.get("one connection: joining update, rate"),
        500,
        "/s",
    )
    for name in QUERIES:
        figure = f"retrieval: {name}, {size} entities, median"
        at_most(
            f"{name}: {size} / {before} entities",
            ratio(figure, f"retrieval: {name}, {before} entities, median"),
            3.0,
        )
        if name in SELECTIVE:
            at_most(f"{name} at {size} entities", found.get(figure), 5.0, "ms")
    at_most(
        "read after 10,000 updates / after 500",
        ratio("history: read after 10,000 updates", "history: read after 500 updates"),
        1.3,
    )
    at_most(
        "update after 9,500 updates / first",
        ratio("history: update, after 9,500", "history: update, first 500"),
        1.3,
    )
    at_least(
        "events to 100 subscribers", found.get("fan-out: events to 100 subscribers"), 30_000, "/s"
    )
    at_least(
        "creates with 100 subscribers / without",
        ratio("fan-out: creates with 100 subscribers", "fan-out: creates with 0 subscribers"),
        0.5,
    )
    at_least(
        "idempotent creates / plain ones, 64 connections",
        ratio("promises: creates, idempotent", "promises: creates, plain"),
        0.7,
    )
    at_least(
        "reads in sessions / plain ones, 64 connections",
        ratio("promises: reads, in sessions", "promises: reads, plain"),
        0.5,
    )
    for size in UNITS:
        at_most(
            f"a work unit of {size} creates / one by one",
            ratio(
                f"promises: a work unit of {size} creates", f"promises: {size} creates one by one"
            ),
            1.0,
        )
    at_most("resident memory, idle", found.get("idle: resident memory"), 120, "MiB")
    at_most("ready after start", found.get("idle: ready after start"), 0.3, "s")
    at_most("status command", found.get("idle: status command"), 0.25, "s")
    at_most(
        "a create at a million changes / at a thousand (median)",
        ratio(
            "million: creates 1000000 to 1010000, median", "million: creates 1000 to 11000, median"
        ),
        1.3,
    )
