"""Every bound of the provider, with its overflow rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteLimits:
    """Bounds of one store. The defaults fit a daemon with some hundred clients.

    waiting_commits: Commits handed over and not answered yet; one more is `UnavailableError`.
    group_commits: Commits that share a transaction; the rest waits for the next one.
    group_bytes: Bytes of values that share a transaction; the commit that crosses it is the last.
    waiting_reads: Calls handed to the reader threads; one more is `UnavailableError`.
    readers: Reader threads, each with a connection of its own.
    inline_look_ups: Versions looked up for one read on the event loop; a longer walk begins again
        on a reader thread.
    inline_value_bytes: Bytes of values read on the event loop for one read; the same rule.
    busy_timeout_ms: Time to wait for another program that holds the database; then the call is
        `UnavailableError`. Our own connections do not wait for each other.
    writer_cache_kib, reader_cache_kib: Page cache of the writer and of each reader.
    log_pages_soft: Pages of the write-ahead log after which they are moved to the database, beside
        the commits.
    log_pages_turn: Length at which the log is begun anew, as soon as only a short rest is left.
    log_pages_hard: Length at which commits wait until it was moved.
    prune_interval_seconds: Time between two looks for what is past its retention: work units,
        changes, idempotency records.
    history_interval_seconds: Least time between two passes over superseded versions past theirs.
    prune_step: Things removed at once; fewer where they take longer than the next bound.
    step_milliseconds: Time that commits wait for a step of the removal, beside its sync.
    step_bytes: Bytes of values and stored answers removed at once.
    """

    waiting_commits: int = 4096
    group_commits: int = 256
    group_bytes: int = 4 * 1024 * 1024
    waiting_reads: int = 1024
    readers: int = 2
    inline_look_ups: int = 64
    inline_value_bytes: int = 1024 * 1024
    busy_timeout_ms: int = 5_000
    writer_cache_kib: int = 16 * 1024
    reader_cache_kib: int = 4 * 1024
    log_pages_soft: int = 1000
    log_pages_turn: int = 8_000
    log_pages_hard: int = 16_000
    prune_interval_seconds: float = 10.0
    history_interval_seconds: float = 60.0
    prune_step: int = 1000
    step_milliseconds: float = 2.5
    step_bytes: int = 1024 * 1024
