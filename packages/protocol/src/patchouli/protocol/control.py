"""`patchouli.control.*@1`: how the daemon is, a checkpoint, a compaction, an orderly end."""

from __future__ import annotations

from typing import Annotated, Literal

from patchouli.protocol.constants import MAX_COMPACTION_STEP
from patchouli.protocol.shapes import (
    Closed,
    EmptyData,
    NonEmpty,
    Params,
    Positive,
    Result,
    Unsigned,
)
from pydantic import Field


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


class CompactRequest(Closed):
    """How much one step may remove, and whether to count what is left, which takes longer."""

    limit: Annotated[int, Field(ge=1, le=MAX_COMPACTION_STEP)] = 1000
    with_due: bool = False


class CompactParams(Params):
    """Asks the store to remove some of what is past its retention."""

    data: CompactRequest


class CompactData(Closed):
    """What one step removed, whether more is due and, if it was asked for, about how much."""

    changes: Unsigned
    idempotency_records: Unsigned
    work_units: Unsigned
    versions: Unsigned
    is_more_due: bool
    due: Unsigned | None


class CompactResult(Result):
    """Answers `compact`."""

    data: CompactData


class ShutdownParams(Params):
    """Asks the daemon to finish what it has begun and to end."""

    data: EmptyData


class ShutdownData(Closed):
    """Says that the end has begun."""

    accepted: Literal[True]


class ShutdownResult(Result):
    """Answers `shutdown`, before the connection closes."""

    data: ShutdownData
