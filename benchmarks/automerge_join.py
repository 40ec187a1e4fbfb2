"""What a join of two versions costs, against building one document from JSON.

    uv run python benchmarks/automerge_join.py [--json FILE]

For each size of text, and for small edits and rewritten texts: the time to build an Automerge
document of the base text (`Document.from_json`: one operation for each code point), the time of a
whole `join` of two versions of it, and the ratio of the two. Best of several runs each, in
milliseconds; only the ratio says anything on another machine. No ratio may be above 3 at 64 KB.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from patchouli.automerge import Document, JoinNode, join

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (150, 1_000, 12_000, 65_536)
LARGEST_RATIO = 3.0
LETTERS = "etaoinshrdlucmfwypvbg"
TOTAL_SECONDS = 0.5  # a measurement, its first run included


def text(size: int, seed: int) -> str:
    """Prose of `size` characters: frequent and rare words, sentences, paragraphs."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(1, 10))) for _ in range(4_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    prose: list[str] = []
    for word in draw.choices(words, weights, k=size // 3):
        ending = draw.random()
        prose.append(word + (".\n\n" if ending < 0.01 else ". " if ending < 0.08 else " "))
    return "".join(prose)[:size]


def edited(old: str, seed: int, share: float) -> str:
    """`old` with that share of its words, and one at least, replaced."""
    draw = random.Random(seed)
    words = old.split(" ")
    for at in draw.sample(range(len(words)), max(1, round(len(words) * share))):
        words[at] = f"edit{draw.randint(0, 999)}"
    return " ".join(words)


def best(work: Callable[[], object]) -> float:
    """The shortest time of `work` in milliseconds."""
    times: list[float] = []
    while (sum(times) < TOTAL_SECONDS and len(times) < 200) or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1_000


def content(prose: str) -> str:
    return json.dumps({"kind": "text", "text": prose}, ensure_ascii=False)


def measure(size: int) -> list[dict[str, float | str]]:
    base = text(size, 1)
    pairs = {
        "one word edited by each": (edited(base, 1, 0), edited(base, 2, 0)),
        "3 % of the words edited by each": (edited(base, 1, 0.03), edited(base, 2, 0.03)),
        "edited by one, rewritten by one": (edited(base, 1, 0.03), text(size, 3)),
        "rewritten by both": (text(size, 2), text(size, 3)),
    }
    build_ms = best(lambda: Document.from_json(content(base), actor=b"base"))
    rows: list[dict[str, float | str]] = []
    for name, (one, other) in pairs.items():
        nodes = [
            JoinNode(version="base", parents=(), json=content(base)),
            JoinNode(version="one", parents=("base",), json=content(one)),
            JoinNode(version="other", parents=("base",), json=content(other)),
        ]
        join_ms = best(
            lambda nodes=nodes: join(
                path="/content", base="base", nodes=nodes, candidates=["one", "other"]
            )
        )
        rows.append(
            {
                "size": size,
                "versions": name,
                "build_ms": build_ms,
                "join_ms": join_ms,
                "ratio": join_ms / build_ms,
            }
        )
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    arguments.add_argument("--json", type=Path, help="write the figures to this file too")
    chosen = arguments.parse_args()
    print(f"{'size':>7}  {'versions':<33}{'build ms':>10}{'join ms':>10}{'ratio':>8}")
    rows: list[dict[str, float | str]] = []
    for size in SIZES:
        for row in measure(size):
            rows.append(row)
            print(
                f"{row['size']:>7}  {row['versions']:<33}{row['build_ms']:>10.3f}"
                f"{row['join_ms']:>10.3f}{row['ratio']:>8.2f}",
                flush=True,
            )
    largest = max(float(row["ratio"]) for row in rows if row["size"] == SIZES[-1])
    state = "reached" if largest <= LARGEST_RATIO else "MISSED"
    print(f"largest ratio at {SIZES[-1]}: {largest:.2f} against {LARGEST_RATIO}: {state}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
