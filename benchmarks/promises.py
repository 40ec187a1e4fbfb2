"""What the promises of a policy cost: identities, sessions, work units, against plain requests.

A home of its own with one type for each promise, so that all are measured in one run of one daemon.
"""

from __future__ import annotations

import copy
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.daemon import COMMAND, running
from benchmarks.load import Lines, Load, run
from benchmarks.peer import Peer, median
from benchmarks.values import HANDSHAKE, request, value_text

if TYPE_CHECKING:
    from benchmarks.state import Run

UNITS = (2, 20, 200)  # entities of a work unit
ROUNDS = 3  # plain and promised by turns, so that a noisy minute falls on both
SECTION = "promises"
WIRE = Lines(HANDSHAKE)

# The aliases that the types of this home use beside those of the shipped policy.
_ALIASES = {"request_key": "/request_key", "participant_id": "/participant_id"}


def promises(run_: Run) -> None:
    """Creates with identities, reads in sessions, and work units, against the plain ones."""
    home = _home(run_.folder / "promises")
    with running(home) as daemon:
        _pairs(
            run_,
            daemon.socket,
            "creates",
            count=12_000,
            plain=lambda n: _create("plain", n),
            promised=lambda n: _create("keyed", n, f',"request_key":"k{n}"'),
            name="idempotent",
        )
        _pairs(
            run_,
            daemon.socket,
            "reads",
            count=40_000,
            plain=lambda n: _read("plain", n % 10_000),
            promised=lambda n: _read("seen", n % 10_000, f',"participant_id":"p{n % 64}"'),
            name="in sessions",
            before=lambda: [_create("seen", n) for n in range(10_000)],
        )
        with Peer(daemon.socket) as peer:
            for size in UNITS:
                alone, staged, together = [], [], []
                for attempt in range(max(9, 100 // size)):
                    lines = [_create("plain", f"a{size}-{attempt}-{n}") for n in range(size)]
                    alone.append(_taken(peer, lines))
                    staged.append(_taken(peer, list(_unit(size, f"s{attempt}"))))
                    together.append(_taken_together(peer, list(_unit(size, f"t{attempt}"))))
                run_.keep(SECTION, f"{size} creates one by one", median(alone), "ms")
                run_.keep(SECTION, f"a work unit of {size} creates", median(together), "ms")
                run_.keep(SECTION, f"the same, each awaited, {size} creates", median(staged), "ms")


def _pairs(
    run_: Run,
    socket: Path,
    kind: str,
    *,
    count: int,
    plain: Any,
    promised: Any,
    name: str,
    before: Any = None,
) -> None:
    if before is not None:
        lines = before()
        run(Load(socket, WIRE, 64, lambda k: iter(lines[k::64])))
    rates: dict[str, list[float]] = {"plain": [], name: []}
    for attempt in range(ROUNDS):
        for title, line in (("plain", plain), (name, promised)):
            numbers = range(attempt * count, (attempt + 1) * count)
            figures = run(Load(socket, WIRE, 64, lambda k, f=line, r=numbers: map(f, r[k::64])))
            rates[title].append(figures.rate)
    for title, found in rates.items():
        run_.keep(SECTION, f"{kind}, {title}", median(found), "/s")


def _taken(peer: Peer, lines: list[bytes]) -> float:
    started = time.perf_counter()
    for line in lines:
        peer.result(line)
    return (time.perf_counter() - started) * 1000


def _taken_together(peer: Peer, lines: list[bytes]) -> float:
    started = time.perf_counter()
    peer.results(lines)
    return (time.perf_counter() - started) * 1000


def _unit(size: int, attempt: str) -> Iterator[bytes]:
    for n in range(size):
        state = ',"transaction_state":"commit"' if n == size - 1 else ""
        yield _create(
            "unit", f"u{size}-{attempt}-{n}", f',"transaction_id":"t{size}-{attempt}"{state}'
        )


def _create(kind: str, name: int | str, meta: str = "") -> bytes:
    number = name if isinstance(name, int) else len(name)
    data = f'{{"type":"{kind}","id":"{kind}-{name}","value":{value_text(number)}}}'
    return request("entity.create", data, meta=meta)


def _read(kind: str, name: int, meta: str = "") -> bytes:
    return request("entity.read", f'{{"ref":{{"type":"{kind}","id":"{kind}-{name}"}}}}', meta=meta)


def _home(root: Path) -> Path:
    subprocess.run([COMMAND, "init", "--root", str(root)], check=True, stdout=subprocess.DEVNULL)
    path = root / "config.json"
    policy = json.loads(path.read_text(encoding="utf-8"))
    text = {"type": "string", "minLength": 1}
    policy["meta_fields"] |= {
        alias: {"pointer": pointer, "schema": text} for alias, pointer in _ALIASES.items()
    }
    types = policy["entity_types"]
    knowledge = types["knowledge"]
    batch = knowledge["rules"][0]["behavior"]
    types["plain"] = {**copy.deepcopy(knowledge), "rules": []}
    types["keyed"] = copy.deepcopy(types["plain"])
    types["keyed"]["fallback"]["idempotency"] = {"mode": "keyed", "key_by": ["request_key"]}
    types["seen"] = copy.deepcopy(types["plain"])
    session = {
        "key_by": ["participant_id"],
        "guarantees": ["monotonic_reads", "read_your_writes"],
    }
    types["seen"]["fallback"]["consistency"]["sessions"] = [session]
    types["unit"] = {**copy.deepcopy(types["plain"]), "fallback": copy.deepcopy(batch)}
    path.write_text(json.dumps(policy), encoding="utf-8")
    return root
