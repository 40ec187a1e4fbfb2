"""Every path, name and bound of the daemon, with its value and where the value comes from.

One table serves the daemon, `config show` and the tests: a bound that is not here does not exist.
Bounds that the wire contract fixes are shown with the others and cannot be changed. The others may
be set in the environment, `PATCHOULI_` followed by the upper-case name; paths and names also by the
options of a command, which win. This module imports nothing heavy: the control commands need it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Source = Literal["default", "environment", "option", "fixed"]

HOME_VARIABLE: Final = "PATCHOULI_HOME"
PREFIX: Final = "PATCHOULI_"
_NAMES: Final = (
    "home",
    "endpoint",
    "config",
    "providers",
    "artifacts",
    "node_id",
    "cluster_id",
)
IS_WINDOWS: Final = sys.platform == "win32"


class CommandError(Exception):
    """Raised when a daemon cannot start or a command cannot do its work.

    The text is for a person: what is wrong, and what to do next.
    """


class WrongUseError(CommandError):
    """Raised when a command was given options that say nothing, or that exclude each other."""


def _bound(
    default: int, unit: str, overflow: str, *, least: int = 1, is_fixed: bool = False
) -> Any:
    return field(
        default=default,
        metadata={"unit": unit, "overflow": overflow, "least": least, "is_fixed": is_fixed},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every bound on what a peer can make grow, or wait for; `describe_limits` tells the rules."""

    max_request_bytes: int = _bound(
        1_048_576, "bytes", "-32600 with id null; the line is dropped unread", is_fixed=True
    )
    max_json_nesting: int = _bound(127, "levels", "-32700 with id null", is_fixed=True)
    max_result_items: int = _bound(100, "hits", "-32602", is_fixed=True)
    max_artifact_chunk_bytes: int = _bound(524_288, "bytes", "-32602", is_fixed=True)
    # At least what the answer of a mutation may need: it stands on disk when it is encoded.
    max_response_bytes: int = _bound(
        67_108_864, "bytes", "OVERLOADED stands in its place", least=4_194_304
    )
    max_page_bytes: int = _bound(
        4_194_304, "bytes of values in a page", "it ends early, with next_cursor"
    )
    max_connections: int = _bound(256, "connections", "OVERLOADED with id null, then closed")
    max_in_flight: int = _bound(32, "requests of a connection", "its lines are not read meanwhile")
    max_overtaken: int = _bound(
        4, "retrievals and downloads of a connection", "its further requests wait"
    )
    max_subscriptions: int = _bound(64, "subscriptions of a connection", "OVERLOADED")
    max_query_ids: int = _bound(10_000, "ids in a query", "-32602")
    max_query_conditions: int = _bound(256, "operators in a query", "-32602")
    max_mutations: int = _bound(4_096, "mutations under way", "OVERLOADED")
    max_waiting_commits: int = _bound(4_096, "commits that wait for the disk", "OVERLOADED")
    max_waiting_reads: int = _bound(1_024, "reads that wait for a thread", "OVERLOADED")
    max_awaiting: int = _bound(
        1_024, "requests that wait for a token or a session", "OVERLOADED at once"
    )
    max_unindexed_changes: int = _bound(
        4_096, "changes that the search index may be behind", "commits wait until it is closer"
    )
    max_joins: int = _bound(2, "merges at once", "further ones wait for one of them")
    max_window_events: int = _bound(
        4_096, "changes of a scope, kept for subscribers", "the oldest is read from the log again"
    )
    max_window_bytes: int = _bound(
        16_777_216, "bytes of the changes of a scope, kept", "the oldest is read from the log again"
    )
    max_windows_bytes: int = _bound(
        67_108_864, "bytes of the changes of all scopes, kept", "the oldest of any scope goes"
    )
    max_artifact_bytes: int = _bound(1 << 30, "bytes of an artifact", "-32602")
    max_uploads: int = _bound(128, "open uploads", "OVERLOADED")
    max_uploads_per_connection: int = _bound(16, "open uploads of a connection", "OVERLOADED")
    max_upload_bytes: int = _bound(8 << 30, "bytes of all open uploads", "OVERLOADED")
    upload_idle_seconds: int = _bound(900, "seconds without a chunk", "the upload is forgotten")
    upload_result_seconds: int = _bound(
        900, "seconds after a commit", "it is no longer answered again"
    )
    max_upload_results: int = _bound(
        1_024, "answers of commits, kept", "the oldest is no longer answered again"
    )
    artifact_grace_seconds: int = _bound(
        86_400,
        "seconds that bytes stay which nothing names",
        "they are removed by the next collection",
        least=3_600,
    )
    artifact_collect_seconds: int = _bound(
        21_600, "seconds between collections, 0 for none", "the next one begins", least=0
    )
    artifact_check_seconds: int = _bound(
        2_592_000, "seconds to read all artifacts once, 0 for never", "it begins anew", least=0
    )
    outbox_bytes: int = _bound(
        4_194_304, "bytes to a connection", "its requests wait until the peer reads"
    )
    event_outbox_bytes: int = _bound(
        262_144, "bytes to a connection", "its events wait in the change log"
    )
    stalled_write_ms: int = _bound(
        30_000, "milliseconds in which a peer reads nothing", "the connection is closed"
    )
    handshake_ms: int = _bound(
        10_000, "milliseconds to the first handshake", "the connection is closed"
    )
    boundary_ms: int = _bound(
        30_000, "milliseconds between boundary notifications", "the position is told then"
    )
    drain_ms: int = _bound(
        10_000, "milliseconds to finish requests at a stop", "what is left is cancelled", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of `config show`."""

    name: str
    value: str | int
    source: Source
    unit: str = ""
    overflow: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the daemon keeps things, what it is called, and its bounds."""

    home: Path
    endpoint: str
    config: Path
    providers: Path
    artifacts: Path
    node_id: str = "local"
    cluster_id: str = "local"
    limits: Limits = field(default_factory=Limits)
    sources: Mapping[str, Source] = field(default_factory=dict[str, Source], repr=False)

    def rows(self) -> list[Setting]:
        """Return every setting, paths and names first, each with where it comes from."""
        named = [
            Setting(name=name, value=str(getattr(self, name)), source=self._source(name))
            for name in _NAMES
        ]
        return named + [
            Setting(
                name=bound.name,
                value=getattr(self.limits, bound.name),
                source="fixed" if bound.metadata["is_fixed"] else self._source(bound.name),
                unit=bound.metadata["unit"],
                overflow=bound.metadata["overflow"],
            )
            for bound in fields(Limits)
        ]

    def _source(self, name: str) -> Source:
        return self.sources.get(name, "default")


def resolve(environ: Mapping[str, str], /, **options: str | Path | None) -> Settings:
    """Return the settings that the options of a command and the environment give.

    `options` are members of `Settings` by name; one that is None was not given. Relative paths are
    those of the working directory.

    Raises:
        WrongUseError: An option is empty.
        CommandError: A variable does not hold what its setting needs, or is blank.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    sources: dict[str, Source] = dict.fromkeys(given, "option")
    for name in _NAMES:
        value = environ.get(PREFIX + name.upper())
        if value and name not in given:
            given[name] = value
            sources[name] = "environment"
        if given.get(name) == "" or given.get(name, "x").isspace():
            is_option = sources.get(name) == "option"
            wanted = f"--{name.replace('_', '-')}" if is_option else PREFIX + name.upper()
            message = f"{wanted} is empty; give it a value or leave it out"
            raise WrongUseError(message) if is_option else CommandError(message)
    home = Path(given.get("home") or Path.home() / ".patchouli").expanduser().absolute()
    return Settings(
        home=home,
        endpoint=given.get("endpoint") or default_endpoint(home),
        config=_path(given, "config", home / "config.json"),
        providers=_path(given, "providers", home / "providers.json"),
        artifacts=_path(given, "artifacts", home / "data" / "artifacts"),
        node_id=given.get("node_id", "local"),
        cluster_id=given.get("cluster_id", "local"),
        limits=_limits(environ, sources),
        sources=sources,
    )


def environment_of(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a process that uses `home` and has every other setting by default."""
    of_settings = {PREFIX + name.upper() for name in _NAMES}
    of_settings |= {PREFIX + bound.name.upper() for bound in fields(Limits)}
    others = {name: value for name, value in environ.items() if name not in of_settings}
    return {**others, HOME_VARIABLE: str(home)}


def default_endpoint(home: Path) -> str:
    """Return where a daemon of `home` listens unless it is told otherwise."""
    return r"\\.\pipe\patchouli" if IS_WINDOWS else str(home / "run" / "patchouli.sock")


def _path(given: Mapping[str, str], name: str, default: Path) -> Path:
    return Path(given[name]).expanduser().absolute() if name in given else default


def _limits(environ: Mapping[str, str], sources: dict[str, Source]) -> Limits:
    values: dict[str, int] = {}
    for bound in fields(Limits):
        variable = PREFIX + bound.name.upper()
        text = environ.get(variable)
        if text is None:
            continue
        if bound.metadata["is_fixed"]:
            raise CommandError(f"{variable} cannot be set: the protocol fixes {bound.name}")
        least: int = bound.metadata["least"]
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            unit: str = bound.metadata["unit"]
            raise CommandError(f"{variable} is {text!r}; write a number of {unit}, {least} or more")
        values[bound.name] = int(text)
        sources[bound.name] = "environment"
    return Limits(**values)
