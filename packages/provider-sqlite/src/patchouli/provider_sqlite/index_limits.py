"""Every bound of the index, with its overflow rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLimits:
    """Bounds of one index.

    batch_changes: Changes, or entities while it is built, that share a transaction of the index.
    batch_bytes: Bytes of values that share one; the entity that crosses it begins the next.
    gather_seconds: How long the index waits for a batch to fill; then it takes what there is.
    tail_changes: Changes that the index may be behind; past it, commits wait until it is closer.
        From half of it on they are slowed down, the more the closer it is, to what the index keeps
        up with: a steady pace, not one that stops and goes.
    settle_seconds: Rest without changes after which the index merges what many small batches left.
    log_bytes: Length of the write-ahead log of the index at which it is emptied, waiting for
        readers that still need it; usually it begins anew by itself.
    retry_seconds: Pause after the disk refused; doubled each time up to a minute.
    """

    batch_changes: int = 1000
    batch_bytes: int = 8 * 1024 * 1024
    gather_seconds: float = 0.2
    tail_changes: int = 4096
    settle_seconds: float = 2.0
    log_bytes: int = 64 * 1024 * 1024
    retry_seconds: float = 1.0
