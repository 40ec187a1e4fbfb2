"""`patchouli-db tour`: the product at work, on real data, in a few seconds.

A private home is made, a real daemon is started in it, and each step says in plain words what it
does, does it over the daemon's socket, and looks whether what came back is what it says. Whatever
happens, the daemon is ended and the home is removed.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, Final

from patchouli.server.caller import Caller, RefusedError
from patchouli.server.settings import CommandError, default_endpoint, environment_of
from rich.console import Console
from rich.text import Text

CALL_SECONDS: Final = 10.0
START_SECONDS: Final = 20.0
TEXT_COLUMNS: Final = 100  # longer lines are hard to read, however wide the terminal is
INTERRUPTED: Final = 130  # the exit code of a process that Ctrl-C ended
META: Final = {"workspace_id": "travel", "user_id": "mira"}
READY_PREFIX: Final = "Patchouli daemon listening on "


class TourFailedError(Exception):
    """Raised when a step did not show what it says."""


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


class Narrator:
    """Tells the tour, with colours where there are some and as plain text elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console
        self._count = 0

    def title(self, text: str, below: str) -> None:
        """Open the tour."""
        self._console.print(Text(text, "bold magenta"))
        self._console.print(Text(below, "dim"))

    def step(self, title: str, text: str) -> None:
        """Begin a step: what it shows, and why somebody would want it."""
        self._count += 1
        self._console.print()
        self._console.print(Text.assemble((f"{self._count}. ", "magenta"), (title, "bold")))
        for line in textwrap.wrap(text, min(self._console.width, TEXT_COLUMNS) - 3):
            self._console.print(Text(f"   {line}", "dim"))

    def happened(self, who: str, what: str) -> None:
        """Tell what somebody did."""
        self._console.print(Text.assemble("   ", (f"{who:<12}", "cyan"), what))

    def seen(self, what: str) -> None:
        """Tell what was looked at and found to be so."""
        self._console.print(Text.assemble("   ", ("ok          ", "green"), what))

    def end(self, text: str) -> None:
        """Close the tour."""
        self._console.print()
        self._console.print(Text(text, "bold"))

    def fail(self, problem: str, log: str) -> None:
        """Tell what was not as it should be."""
        self._console.print()
        self._console.print(Text.assemble(("This step failed: ", "bold red"), problem))
        if log:
            self._console.print(Text(f"The daemon said:\n{log}", "dim"))


class TourDaemon:
    """The daemon of the tour, and the home that both of them use."""

    def __init__(self, home: Path) -> None:
        self.home: Final = home
        self.endpoint: Final = default_endpoint(home)
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []

    def start(self) -> None:
        """Start the process and wait for its ready line."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "patchouli.server", "serve"],
            env=environment_of(self.home, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the tour, which then ends the daemon in order.
            start_new_session=True,
        )
        assert self._process.stderr is not None  # noqa: S101 -- a pipe, see above
        for line in self._process.stderr:
            if line.startswith(READY_PREFIX):
                return
            self._lines.append(line)
        raise TourFailedError("the daemon did not start")

    def kill(self) -> None:
        """End the process without any warning, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._finish(self._process)

    def end(self) -> int:
        """End the process in order and return its exit code."""
        if self._process is None:
            return 0
        process = self._process
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        return self._finish(process)

    def remove(self) -> None:
        """End the process, if it still runs, and remove the home."""
        # A second Ctrl-C must not leave anything behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.end()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def log(self) -> str:
        """Return what the daemon has said on standard error, once it has ended."""
        self.end()
        return "".join(self._lines)

    def call(self, capabilities: tuple[str, ...] = ()) -> Caller:
        """Return a new connection, as one agent has it."""
        return Caller(self.endpoint, timeout_seconds=CALL_SECONDS, capabilities=capabilities)

    def _finish(self, process: subprocess.Popen[str]) -> int:
        code = process.wait()
        self._process = None
        if process.stderr is not None:
            self._lines.extend(process.stderr)
            process.stderr.close()
        return code


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
            made = _create(agent, "seats", "Mira prefers window seats on long flights.")
            read = _read(agent, "seats")
        _require(read["state"] == "active", "the new entity is not active")
        _require(_text(read["variants"][0]) == _text(made), "another text was read back")
        self._tell.happened("planner", f"wrote  “{_text(made)}”")
        self._tell.seen("read back from the store, word for word")
        return "seats"

    def _merge(self, note: str) -> None:
        self._tell.step(
            "Two agents edit it at the same time",
            "Both start from the same version and neither waits for the other. What they changed "
            "in different places is merged.",
        )
        with self._daemon.call() as planner, self._daemon.call() as booker:
            base = _read(planner, note)["variants"][0]
            before = _text(base)
            first = before.replace("window", "quiet window")
            second = before.replace("flights.", "flights and night trains.")
            _update(planner, note, first, [base["version"]])
            merged = _update(booker, note, second, [base["version"]])
            heads = _read(planner, note)["variants"]
        self._tell.happened("planner", f"wrote  “{first}”")
        self._tell.happened("booker", f"wrote  “{second}”")
        result = _text(merged)
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
            base = _create(planner, "departure", "The train leaves at 9:15.")["version"]
            keep = {"conflict_strategy": "mvcc"}
            _update(planner, "departure", "The train leaves at 9:40.", [base], keep)
            _update(booker, "departure", "The train leaves at 8:55.", [base], keep)
            read = _read(planner, "departure")
            _require(read["state"] == "conflicted", "the disagreement was not kept")
            for variant in read["variants"]:
                self._tell.happened("says", f"“{_text(variant)}”")
            self._tell.seen("conflicted: both versions are there, and marked as such")
            heads = [variant["version"] for variant in read["variants"]]
            _update(planner, "departure", "The train leaves at 9:40, platform 4.", heads)
            resolved = _read(booker, "departure")
        _require(resolved["state"] == "active", "the conflict was not resolved")
        self._tell.happened("planner", f"decided “{_text(resolved['variants'][0])}”")
        self._tell.seen("one version again, made from both")

    def _search(self) -> None:
        self._tell.step(
            "Somebody looks for it",
            "Text search covers every word of a value, in any script, and filters cover every "
            "field. A value is found as soon as it was accepted.",
        )
        with self._daemon.call() as agent:
            _create(agent, "tea", "On trains Mira drinks green tea.", persistence="long_term")
            _create(agent, "kyoto", "京都の桜は四月初めに満開になる。", persistence="long_term")
            _create(agent, "rule", "Never book the last train.", actionability="constraint")
            for query, wanted in (
                ({"text": "night trains"}, {"seats"}),
                ({"text": "桜"}, {"kyoto"}),
                ({"text": "train", "where": {"/profile/actionability": "constraint"}}, {"rule"}),
            ):
                hits = _retrieve(agent, query)
                found = {hit["variants"][0]["ref"]["id"] for hit in hits}
                _require(found == wanted, f"{query} found {sorted(found)}")
                shown = ", ".join(_text(hit["variants"][0]) for hit in hits)
                self._tell.happened("searched", _query_words(query))
                self._tell.seen(f"found  “{shown}”")

    def _follow(self) -> None:
        self._tell.step(
            "Another agent follows along",
            "A subscription tells of every change from a position on, in order, and can go on "
            "there after a break.",
        )
        with self._daemon.call(("subscriptions",)) as watcher, self._daemon.call() as agent:
            begun = watcher.call("patchouli.changes.subscribe@1", _params({}))["data"]
            made = _create(agent, "hotel", "The hotel keeps luggage until six.")
            _delete(agent, "hotel", [made["version"]])
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
                "patchouli.changes.subscribe@1", _params({"after_cursor": kinds[0]["cursor"]})
            )
            again = watcher.notification()["params"]["data"]["change"]
        _require(again["kind"] == "deleted", "another change follows the saved position")
        self._tell.seen("after a new connection it went on where it had stopped")

    def _work_unit(self) -> None:
        unit = {"transaction_id": "tour"}
        with self._daemon.call() as agent, self._daemon.call() as other:
            _create(agent, "plan-a", "Monday: train to the sea.", meta=unit)
            self._tell.step(
                "An agent changes several things at once",
                "Others see all of it or nothing.",
            )
            _require(not _exists(other, "plan-a"), "a staged value was seen from outside")
            self._tell.happened("planner", "wrote the first of two notes; nobody else sees it")
            closing = {**unit, "transaction_state": "commit"}
            _create(agent, "plan-b", "Tuesday: the lighthouse.", meta=closing)
            _require(
                _exists(other, "plan-a") and _exists(other, "plan-b"),
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
                _params(
                    {
                        "id": "seat-plan",
                        "media_type": "text/csv",
                        "name": "seats.csv",
                        "expected_byte_length": len(data),
                        "expected_digest": digest,
                        "metadata": _metadata("patchouli.artifact@1"),
                    }
                ),
            )["data"]
            size = began["max_chunk_bytes"]
            for offset in range(0, len(data), size):
                agent.call(
                    "patchouli.artifact.upload.chunk@1",
                    _params(
                        {
                            "upload_id": began["upload_id"],
                            "offset": offset,
                            "bytes_base64": base64.b64encode(data[offset : offset + size]).decode(),
                        }
                    ),
                )
            agent.call(
                "patchouli.artifact.upload.commit@1", _params({"upload_id": began["upload_id"]})
            )
            read = _download(agent, "seat-plan", size)
        self._tell.happened("planner", f"uploaded seats.csv, {len(data):,} bytes")
        _require(read == data, "other bytes were downloaded")
        self._tell.seen(f"downloaded again, identical: {digest[:23]}…")

    def _crash(self, note: str) -> None:
        self._tell.step(
            "The daemon crashes",
            "What was answered is on disk, so that killing it at any moment loses nothing.",
        )
        with self._daemon.call() as agent:
            before = _read(agent, note)
            kept = _create(agent, "last", "Written a moment before the crash.")
        self._daemon.kill()
        self._tell.happened("you", "killed it without warning (SIGKILL)")
        self._daemon.start()
        with self._daemon.call() as agent:
            status = agent.call("patchouli.control.status@1", {"meta": {}, "data": {}})["data"]
            after = _read(agent, note)
            last = _read(agent, "last")["variants"][0]
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


def _params(data: dict[str, Any], meta: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"meta": {**META, **(meta or {})}, "data": data}


def _create(
    agent: Caller, name: str, text: str, *, meta: dict[str, Any] | None = None, **profile: str
) -> dict[str, Any]:
    data = {"type": "knowledge", "id": name, "value": _knowledge(text, profile)}
    return agent.call("patchouli.entity.create@1", _params(data, meta))["data"]["entity"]


def _read(agent: Caller, name: str) -> dict[str, Any]:
    data = {"ref": {"type": "knowledge", "id": name}}
    return agent.call("patchouli.entity.read@1", _params(data))["data"]


def _exists(agent: Caller, name: str) -> bool:
    try:
        _read(agent, name)
    except RefusedError as error:
        if error.reason == "NOT_FOUND":
            return False
        raise
    return True


def _update(
    agent: Caller,
    name: str,
    text: str,
    bases: list[str],
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    current = _read(agent, name)["variants"][0]["value"]
    value = {**current, "content": {"kind": "text", "text": text}}
    data = {"ref": {"type": "knowledge", "id": name}, "value": value}
    params = _params(data, {"base_versions": bases, **(meta or {})})
    return agent.call("patchouli.entity.update@1", params)["data"]["entity"]


def _delete(agent: Caller, name: str, bases: list[str]) -> None:
    data = {"ref": {"type": "knowledge", "id": name}}
    agent.call("patchouli.entity.delete@1", _params(data, {"base_versions": bases}))


def _retrieve(agent: Caller, query: dict[str, Any]) -> list[dict[str, Any]]:
    data = {"query": json.dumps(query), "types": ["knowledge"]}
    return agent.call("patchouli.entity.retrieve@1", _params(data))["data"]["hits"]


def _download(agent: Caller, name: str, size: int) -> bytes:
    received = b""
    version = None
    while True:
        part = agent.call(
            "patchouli.artifact.download.chunk@1",
            _params({"id": name, "version": version, "offset": len(received), "max_bytes": size}),
        )["data"]
        version = part["entity"]["version"]
        received += base64.b64decode(part["bytes_base64"])
        if part["eof"]:
            return received


def _text(version: dict[str, Any]) -> str:
    return version["value"]["content"]["text"]


def _query_words(query: dict[str, Any]) -> str:
    words = f"for “{query['text']}”"
    for pointer, value in query.get("where", {}).items():
        words += f" where {pointer.rpartition('/')[2]} is {value}"
    return words


def _knowledge(text: str, profile: dict[str, str]) -> dict[str, Any]:
    return {
        "content": {"kind": "text", "text": text},
        "metadata": _metadata("patchouli.knowledge@1"),
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "timeless"},
            "ownership": "user",
            "abstraction": "instance",
            "persistence": "short_term",
            "retrieval": ["exact", "contextual"],
            "actionability": "informational",
            **profile,
        },
    }


def _metadata(schema: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return {
        "core": {
            "schema": schema,
            "scope": {
                "tenant": None,
                "workspace": META["workspace_id"],
                "user": META["user_id"],
                "session": None,
            },
            "origin": {
                "provider": "patchouli-db",
                "binding": "tour",
                "native_type": None,
                "native_id": None,
                "native_revision": None,
            },
            "time": {
                "event_at": None,
                "source_created_at": None,
                "source_updated_at": None,
                "observed_at": now,
                "ingested_at": now,
            },
            "lifecycle": {"status": "active", "expires_at": None},
            "provenance": [
                {"kind": "observed", "actor": "plugin:tour", "source": None, "recorded_at": now}
            ],
        },
        "extensions": {},
    }
