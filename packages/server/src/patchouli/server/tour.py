"""`patchouli-db tour`: the product at work, on real data, in a few seconds.

A private home is made, a real daemon is started in it, and each step says in plain words what it
does, does it over the daemon's socket, and looks whether what came back is what it says. Whatever
happens, the daemon is ended and the home is removed.
"""

from __future__ import annotations

import base64
import hashlib
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from patchouli.server.settings import CommandError
from patchouli.server.tour_agent import metadata_of, params_of, text_of
from patchouli.server.tour_stage import Narrator, TourDaemon, TourFailedError
from rich.console import Console

INTERRUPTED: Final = 130  # the exit code of a process that Ctrl-C ended


def take_tour() -> int:
    """Show everything and return the exit code of the command."""
    narrator = Narrator(Console(highlight=False, soft_wrap=True, markup=False))
    home = Path(tempfile.mkdtemp(prefix="patchouli-tour-"))
    daemon = TourDaemon(home)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        Tour(narrator, daemon).take()
    except KeyboardInterrupt:
        narrator.end("Interrupted. Everything is being removed.")
        return INTERRUPTED
    except (TourFailedError, CommandError) as error:
        narrator.fail(str(error), daemon.log())
        return 1
    finally:
        daemon.remove()
    return 0


def _interrupt(_: int, __: object) -> None:
    raise KeyboardInterrupt


class Tour:
    """The steps, in order; each opens the connections that it needs."""

    def __init__(self, narrator: Narrator, daemon: TourDaemon) -> None:
        self._tell: Final = narrator
        self._daemon: Final = daemon

    def take(self) -> None:
        """Take all steps.

        Raises:
            TourFailedError: One did not show what it says.
            CommandError: The daemon refused something, or was not there.
        """
        began = time.monotonic()
        self._tell.title(
            "Patchouli: a memory that several agents can share",
            f"Everything happens in {self._daemon.home}, which is removed at the end.",
        )
        self._start()
        note = self._create()
        self._merge(note)
        self._conflict()
        self._search()
        self._follow()
        self._work_unit()
        self._artifact()
        self._crash(note)
        self._stop()
        self._tell.end(
            f"That was all, in {time.monotonic() - began:.1f} s. To run it for yourself: "
            "patchouli-db serve"
        )

    def _start(self) -> None:
        self._tell.step(
            "A daemon starts",
            "It makes its home, opens an embedded database, and listens on a socket that only "
            "you can open.",
        )
        began = time.monotonic()
        self._daemon.start()
        with self._daemon.call() as agent:
            status = agent.call("patchouli.control.status@1", {"meta": {}, "data": {}})["data"]
        _require(status["ready"] is True, "the daemon is not ready")
        self._tell.seen(f"ready {time.monotonic() - began:.1f} s after its start")

    def _create(self) -> str:
        self._tell.step(
            "An agent remembers something",
            "Knowledge is a typed value, checked against a schema. The answer comes when it is on "
            "disk.",
        )
        with self._daemon.call() as agent:
            made = agent.create("seats", "Mira prefers window seats on long flights.")
            read = agent.read("seats")
        _require(read["state"] == "active", "the new entity is not active")
        _require(text_of(read["variants"][0]) == text_of(made), "another text was read back")
        self._tell.happened("planner", f"wrote  “{text_of(made)}”")
        self._tell.seen("read back from the store, word for word")
        return "seats"

    def _merge(self, note: str) -> None:
        self._tell.step(
            "Two agents edit it at the same time",
            "Both start from the same version and neither waits for the other. What they changed "
            "in different places is merged.",
        )
        with self._daemon.call() as planner, self._daemon.call() as booker:
            base = planner.read(note)["variants"][0]
            before = text_of(base)
            first = before.replace("window", "quiet window")
            second = before.replace("flights.", "flights and night trains.")
            planner.update(note, first, [base["version"]])
            merged = booker.update(note, second, [base["version"]])
            heads = planner.read(note)["variants"]
        self._tell.happened("planner", f"wrote  “{first}”")
        self._tell.happened("booker", f"wrote  “{second}”")
        result = text_of(merged)
        _require(len(heads) == 1, "the edits were not merged into one version")
        _require(
            "quiet window" in result and "night trains" in result, f"an edit is missing: {result}"
        )
        self._tell.seen(f"merged “{result}”")

    def _conflict(self) -> None:
        self._tell.step(
            "Two agents disagree",
            "Where merging would be wrong, both answers are kept side by side until somebody "
            "decides.",
        )
        with self._daemon.call() as planner, self._daemon.call() as booker:
            base = planner.create("departure", "The train leaves at 9:15.")["version"]
            keep = {"conflict_strategy": "mvcc"}
            planner.update("departure", "The train leaves at 9:40.", [base], keep)
            booker.update("departure", "The train leaves at 8:55.", [base], keep)
            read = planner.read("departure")
            _require(read["state"] == "conflicted", "the disagreement was not kept")
            for variant in read["variants"]:
                self._tell.happened("says", f"“{text_of(variant)}”")
            self._tell.seen("conflicted: both versions are there, and marked as such")
            heads = [variant["version"] for variant in read["variants"]]
            planner.update("departure", "The train leaves at 9:40, platform 4.", heads)
            resolved = booker.read("departure")
        _require(resolved["state"] == "active", "the conflict was not resolved")
        self._tell.happened("planner", f"decided “{text_of(resolved['variants'][0])}”")
        self._tell.seen("one version again, made from both")

    def _search(self) -> None:
        self._tell.step(
            "Somebody looks for it",
            "Text search covers every word of a value, in any script, and filters cover every "
            "field. A value is found as soon as it was accepted.",
        )
        with self._daemon.call() as agent:
            agent.create("tea", "On trains Mira drinks green tea.", persistence="long_term")
            agent.create("kyoto", "京都の桜は四月初めに満開になる。", persistence="long_term")
            agent.create("rule", "Never book the last train.", actionability="constraint")
            for query, wanted in (
                ({"text": "night trains"}, {"seats"}),
                ({"text": "桜"}, {"kyoto"}),
                ({"text": "train", "where": {"/profile/actionability": "constraint"}}, {"rule"}),
            ):
                hits = agent.retrieve(query)
                found = {hit["variants"][0]["ref"]["id"] for hit in hits}
                _require(found == wanted, f"{query} found {sorted(found)}")
                shown = ", ".join(text_of(hit["variants"][0]) for hit in hits)
                self._tell.happened("searched", _query_words(query))
                self._tell.seen(f"found  “{shown}”")

    def _follow(self) -> None:
        self._tell.step(
            "Another agent follows along",
            "A subscription tells of every change from a position on, in order, and can go on "
            "there after a break.",
        )
        with self._daemon.call(("subscriptions",)) as watcher, self._daemon.call() as agent:
            begun = watcher.call("patchouli.changes.subscribe@1", params_of({}))["data"]
            made = agent.create("hotel", "The hotel keeps luggage until six.")
            agent.delete("hotel", [made["version"]])
            kinds = [watcher.notification()["params"]["data"]["change"] for _ in range(2)]
        _require(
            [change["kind"] for change in kinds] == ["created", "deleted"],
            f"other changes were told: {kinds}",
        )
        _require(kinds[-1]["cursor"] != begun["cursor"], "the position did not move")
        for change in kinds:
            self._tell.happened(
                "watcher", f"was told that “{change['ref']['id']}” was {change['kind']}"
            )
        with self._daemon.call(("subscriptions",)) as watcher:
            watcher.call(
                "patchouli.changes.subscribe@1", params_of({"after_cursor": kinds[0]["cursor"]})
            )
            again = watcher.notification()["params"]["data"]["change"]
        _require(again["kind"] == "deleted", "another change follows the saved position")
        self._tell.seen("after a new connection it went on where it had stopped")

    def _work_unit(self) -> None:
        unit = {"transaction_id": "tour"}
        with self._daemon.call() as agent, self._daemon.call() as other:
            agent.create("plan-a", "Monday: train to the sea.", meta=unit)
            self._tell.step(
                "An agent changes several things at once",
                "Others see all of it or nothing.",
            )
            _require(not other.exists("plan-a"), "a staged value was seen from outside")
            self._tell.happened("planner", "wrote the first of two notes; nobody else sees it")
            closing = {**unit, "transaction_state": "commit"}
            agent.create("plan-b", "Tuesday: the lighthouse.", meta=closing)
            _require(
                other.exists("plan-a") and other.exists("plan-b"),
                "the work unit was not published as a whole",
            )
            self._tell.seen("with the second note both appeared together")

    def _artifact(self) -> None:
        self._tell.step(
            "An agent keeps a file",
            "Bytes are stored once by their content; knowledge refers to them.",
        )
        data = b"".join(
            b"seat %d,%s\n" % (row, b"window" if row % 2 else b"aisle") for row in range(60_000)
        )
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with self._daemon.call(("artifacts",)) as agent:
            began = agent.call(
                "patchouli.artifact.upload.begin@1",
                params_of(
                    {
                        "id": "seat-plan",
                        "media_type": "text/csv",
                        "name": "seats.csv",
                        "expected_byte_length": len(data),
                        "expected_digest": digest,
                        "metadata": metadata_of("patchouli.artifact@1"),
                    }
                ),
            )["data"]
            size = began["max_chunk_bytes"]
            for offset in range(0, len(data), size):
                agent.call(
                    "patchouli.artifact.upload.chunk@1",
                    params_of(
                        {
                            "upload_id": began["upload_id"],
                            "offset": offset,
                            "bytes_base64": base64.b64encode(data[offset : offset + size]).decode(),
                        }
                    ),
                )
            agent.call(
                "patchouli.artifact.upload.commit@1", params_of({"upload_id": began["upload_id"]})
            )
            read = agent.download("seat-plan", size)
        self._tell.happened("planner", f"uploaded seats.csv, {len(data):,} bytes")
        _require(read == data, "other bytes were downloaded")
        self._tell.seen(f"downloaded again, identical: {digest[:23]}…")

    def _crash(self, note: str) -> None:
        self._tell.step(
            "The daemon crashes",
            "What was answered is on disk, so that killing it at any moment loses nothing.",
        )
        with self._daemon.call() as agent:
            before = agent.read(note)
            kept = agent.create("last", "Written a moment before the crash.")
        self._daemon.kill()
        self._tell.happened("you", "killed it without warning (SIGKILL)")
        self._daemon.start()
        with self._daemon.call() as agent:
            status = agent.call("patchouli.control.status@1", {"meta": {}, "data": {}})["data"]
            after = agent.read(note)
            last = agent.read("last")["variants"][0]
        _require(status["recovered_after_unclean_shutdown"] is True, "the crash went unnoticed")
        _require(after == before and last == kept, "something is missing after the crash")
        self._tell.seen("it started again, noticed the crash, and everything is there")

    def _stop(self) -> None:
        self._tell.step("It stops", "Requests are finished, the database is closed cleanly.")
        code = self._daemon.end()
        _require(code == 0, f"it ended with {code}")
        _require(not Path(self._daemon.endpoint).exists(), "its socket is still there")
        self._tell.seen("ended in order; its socket is gone")


def _require(is_so: bool, problem: str) -> None:  # noqa: FBT001 -- it reads like an assertion
    if not is_so:
        raise TourFailedError(problem)


def _query_words(query: dict[str, Any]) -> str:
    words = f"for “{query['text']}”"
    for pointer, value in query.get("where", {}).items():
        words += f" where {pointer.rpartition('/')[2]} is {value}"
    return words
