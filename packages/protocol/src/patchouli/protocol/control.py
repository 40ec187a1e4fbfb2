"""`patchouli.control.*@1`: how the daemon is, a checkpoint, an orderly end."""

from __future__ import annotations

from typing import Literal

from patchouli.protocol.shapes import (
    Closed,
    EmptyData,
    NonEmpty,
    Params,
    Positive,
    Result,
    Unsigned,
)


class StatusParams(Params):
    """Asks for the daemon's state."""

    data: EmptyData


class StatusData(Closed):
    """The state of the daemon and of the store behind it."""

    ready: Literal[True]
    provider: NonEmpty
    generation: Positive
    recovered_after_unclean_shutdown: bool
    pid: Positive
    started_at_unix_ms: Unsigned
    active_connections: Unsigned


class StatusResult(Result):
    """Answers `status`."""

    data: StatusData


class CheckpointParams(Params):
    """Asks the store to fold its log into its database."""

    data: EmptyData


class CheckpointData(Closed):
    """Says that it is done."""

    completed: Literal[True]


class CheckpointResult(Result):
    """Answers `checkpoint`."""

    data: CheckpointData


class ShutdownParams(Params):
    """Asks the daemon to finish what it has begun and to end."""

    data: EmptyData


class ShutdownData(Closed):
    """Says that the end has begun."""

    accepted: Literal[True]


class ShutdownResult(Result):
    """Answers `shutdown`, before the connection closes."""

    data: ShutdownData
