"""What retrieval costs in process, by kind of query and number of entities, and what indexing does.

Run it by `python -m benchmarks.retrieval_sqlite --folder /a/real/disk --sizes 1000,10000,100000`.

A truth database is filled with knowledge values of about 1 KB: English prose of the Python manual,
every third with a Chinese phrase, a tenth of them in other scopes. Then its index is built, and
each query is asked some times on one connection, without engine and socket. Only ratios within one
run mean something, so indexing is also given in units of a fixed piece of SQLite work that is done
between its batches (12 us on an idle core of the machine of the first report).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import apsw
from patchouli.provider import EntityKey, Operator, Order, Position, ScopeText
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_store import index_path
from patchouli.provider_sqlite.testing.library import SCOPE, Library, filter_of, plan_of

from benchmarks.values import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.provider import Filter, Json, RetrievePlan

HANZI = """
数据 索引 查询 记忆 知识 代理 事务 版本 冲突 合并 窗口 座位 偏好 会议 航班 合同 预算 客户
发布 回滚 设计 原型 面试 模型 训练 向量 集群 副本 分片 网络 内存 磁盘 线程 进程 编译 语法
上海 北京 杭州 明天 昨天 喜欢 茶 咖啡 猫 读书 音乐 旅行 项目 计划 报告 风险 靠窗 蓝色
笔记本 素食 早餐 安静 房间 周末 爬山 图书馆 结果
""".split()
PROSE = re.findall(r"[A-Za-z]{2,}[.,]?", " ".join(topics.values()))
TYPES = ("artifact", "knowledge", "knowledge_relation")
GROUP = 500
ASKED = 31


def corpus_value(number: int) -> Json:
    """Return the value of `number`: prose, ids of its own, and what all values have."""
    chance = random.Random(number)
    value = json.loads(json.dumps(value_of(number)))
    start = chance.randrange(len(PROSE) - 40)
    words = PROSE[start : start + chance.randint(15, 35)]
    if number % 3 == 0:
        phrase = "".join(chance.choices(HANZI, k=chance.randint(2, 6)))
        words.insert(chance.randrange(len(words)), phrase)
    value["content"]["text"] = " ".join(words) + f" ref{number:07d}"
    core = value["metadata"]["core"]
    core["scope"]["session"] = f"s-{chance.randrange(5000)}"
    core["scope"]["user"] = chance.choice(("mira", "tom", "yuki", "陈晨"))
    core["time"]["event_at"] = (
        f"2031-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}T09:15:00Z"
    )
    value["metadata"]["extensions"]["acme.mail"]["score"] = round(chance.random(), 2)
    value["profile"]["epistemic"] = chance.choice(("belief", "knowledge", "observation"))
    return value


def fill(library: Library, size: int) -> None:
    """Write `size` entities, a tenth of them into other scopes."""
    for first in range(0, size, GROUP):
        library.put_all(
            [
                (
                    EntityKey(
                        SCOPE if number % 10 else ScopeText(f'{{"w":"other {number % 1000}"}}'),
                        "knowledge",
                        f"{random.Random(number).getrandbits(128):032x}",
                    ),
                    [corpus_value(number)],
                    1000 + number,
                )
                for number in range(first, min(first + GROUP, size))
            ]
        )
        library.forget_heads()


@dataclass
class Cost:
    """Seconds of one core for a document: by the clock of the thread, and in units."""

    microseconds: float
    units: float


def build(library: Library, size: int) -> Cost:
    """Build the index; return what one document costs in all."""
    while library.index.catch_up():  # the log first, or everything would still be in the tail
        pass
    unit = _Unit()
    spent = spent_on_units = 0.0
    has_more = True
    while has_more:
        started = time.thread_time()
        has_more = library.index.build_on()
        finished = time.thread_time()
        unit.work()
        spent += finished - started
        spent_on_units += time.thread_time() - finished
    per_unit = spent_on_units / unit.documents
    return Cost(spent / size * 1e6, spent / size / per_unit)


class _Unit:
    """A fixed piece of work: the distinct leaves of one value, by `json_tree`."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.execute("CREATE TABLE sample (body TEXT)")
        self._connection.executemany(
            "INSERT INTO sample VALUES (?)",
            ((json.dumps(corpus_value(number), ensure_ascii=False),) for number in range(500)),
        )
        self.documents = 0

    def work(self) -> None:
        self._connection.execute(
            "SELECT sum(length(found)) FROM (SELECT (SELECT group_concat(atom) FROM ("
            "SELECT DISTINCT atom FROM json_tree(body) WHERE atom IS NOT NULL)) AS found"
            " FROM sample)"
        ).fetchall()
        self.documents += 500


def equals(pointer: str, operand: Json) -> tuple[Filter]:
    return (filter_of(pointer, Operator.EQUAL, operand),)


def compares(pointer: str, operator: Operator, operand: Json) -> tuple[Filter]:
    return (filter_of(pointer, operator, operand),)


def between(pointer: str, first: int) -> tuple[Filter, Filter]:
    return (
        filter_of(pointer, Operator.GREATER_OR_EQUAL, first),
        filter_of(pointer, Operator.LESS, first + 50),
    )


def queries(size: int) -> dict[str, Callable[[random.Random], RetrievePlan]]:
    """Return the plans by name. Those above the line are selective, or end with the page."""
    page = replace(plan_of(order=Order.NEWEST), limit=10, types=TYPES)

    def text(needle: str, order: Order = Order.RELEVANCE) -> RetrievePlan:
        return replace(page, text=needle, order=order)

    def known(chance: random.Random) -> int:
        return chance.randrange(size // 10) * 10 + 1

    folder, rank = "/metadata/extensions/acme.mail/folder", "/metadata/extensions/acme.mail/rank"
    native_id = "/metadata/core/origin/native_id"
    return {
        "newest": lambda _: page,
        "oldest": lambda _: replace(page, order=Order.OLDEST),
        "by id": lambda _: replace(page, order=Order.ID_ASCENDING),
        "newest, page in the middle": lambda _: replace(
            page, after=Position(score=0, recorded_at_unix_ms=1000 + size // 2, type="k", id="k")
        ),
        "text, one match": lambda r: text(f"ref{known(r):07d}"),
        "text, a phrase of the corpus": lambda r: text(
            " ".join(str(corpus_value(known(r))["content"]["text"]).split()[3:6])  # type: ignore[index, call-overload] - the value above
        ),
        "text, no match": lambda _: text("no such words here"),
        "text, two rare Chinese characters": lambda r: text(
            r.choice(("茶猫", "猫茶", "馆昨", "栈素", "磁猫"))
        ),
        "text, two rare letters": lambda r: text(r.choice(("zq", "qz", "jq", "xk", "vq"))),
        "text, a rare sign": lambda r: text(r.choice(("~", "^", "€", "™"))),
        "text, a common word, newest": lambda _: text("object", Order.NEWEST),
        "text, two common letters, newest": lambda _: text("th", Order.NEWEST),
        "text, one letter, newest": lambda _: text("z", Order.NEWEST),
        "text, only in member names": lambda _: text("lifecycle"),
        "equality, one match": lambda r: replace(page, filters=equals(native_id, f"m-{known(r)}")),
        "equality, one of a thousand": lambda r: replace(
            page, filters=equals(folder, f"folder-{known(r) % 1000}")
        ),
        "equality, a number, no match": lambda _: replace(page, filters=equals(rank, -7.5)),
        "equality, a third": lambda _: replace(
            page, filters=equals("/profile/epistemic", "belief")
        ),
        "equality and a common word": lambda r: replace(
            text("object"), filters=equals(folder, f"folder-{known(r) % 1000}")
        ),
        "an array contains": lambda _: replace(
            page, filters=compares("/profile/retrieval", Operator.CONTAINS, "exact")
        ),
        "range, fifty numbers": lambda r: replace(page, filters=between(rank, known(r))),
        "range, a half": lambda _: replace(
            page, filters=compares(rank, Operator.GREATER, size // 2)
        ),
        "three ids": lambda _: replace(page, ids=frozenset(("x", "y", "z"))),
        LINE: lambda _: page,
        "text, a common word": lambda _: text("object"),
        "text, two common Chinese characters": lambda _: text("北京"),
        "text, one Chinese character": lambda _: text("茶"),
        "text, two common letters": lambda _: text("th"),
        "text, one letter": lambda _: text("z"),
        "range of strings, no match": lambda _: replace(
            page, filters=compares("/metadata/core/time/event_at", Operator.LESS, "1999")
        ),
        "thirty thousand ids": lambda _: replace(page, ids=frozenset(map(str, range(30_000)))),
    }


LINE = "(all that follow look at every match)"


def ask(library: Library, size: int) -> dict[str, tuple[float, float]]:
    """Return the median and the longest time of each query, in milliseconds."""
    times: dict[str, tuple[float, float]] = {}
    for name, plan_for in queries(size).items():
        chance = random.Random(7)
        taken: list[float] = []
        for asked in count():
            plan = plan_for(chance)
            started = time.perf_counter()
            library.search(plan)
            taken.append((time.perf_counter() - started) * 1e3)
            if asked == ASKED or sum(taken) > 3000:
                break
        times[name] = statistics.median(taken), max(taken)
    return times


def report(found: dict[int, dict[str, tuple[float, float]]]) -> None:
    sizes = sorted(found)
    print(
        f"\n{'median (longest) in ms':<38}" + "".join(f"{size:>18,}" for size in sizes) + "  growth"
    )
    for name in found[sizes[0]]:
        if name == LINE:
            print(name)
            continue
        cells = "".join(
            f"{found[size][name][0]:.2f} ({found[size][name][1]:.1f})".rjust(18) for size in sizes
        )
        growth = found[sizes[-1]][name][0] / found[sizes[-2]][name][0] if len(sizes) > 1 else 1.0
        print(f"{name:<38}{cells}{growth:>8.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to put the databases")
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--batch", type=int, default=IndexLimits().batch_changes)
    options = parser.parse_args(arguments)
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for size in map(int, options.sizes.split(",")):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            library = Library(Path(folder) / "db", limits=IndexLimits(batch_changes=options.batch))
            fill(library, size)
            cost = build(library, size)
            library.index.checkpoint()
            bytes_ = index_path(library.truth).stat().st_size
            print(
                f"{size:,} entities: indexing {cost.microseconds:.0f} us of a core each,"
                f" {cost.units:.1f} units; index {bytes_ / size:,.0f} bytes each",
                flush=True,
            )
            found[size] = ask(library, size)
            library.close()
    report(found)


if __name__ == "__main__":
    main()
