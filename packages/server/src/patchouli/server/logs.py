"""The daemon's log: events with fields, one line each, to standard error.

What is never in it: values, metadata, queries, tokens and paths of stored artifacts. A field holds
a name, a number or an error class; the traceback of a bug names code lines and no data.

structlog takes longer to load than the rest of the daemon takes to get ready, because it brings its
console renderer along. So it is loaded when the first event is written.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger

Level = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")


class Log:
    """Writes events of at least one level; a level below it costs one comparison."""

    def __init__(self, level: Level = "info") -> None:
        self._least: Final = LEVELS.index(level)
        self._level: Final = level
        self._logger: FilteringBoundLogger | None = None

    @property
    def is_debugging(self) -> bool:
        """Whether single requests are logged."""
        return self._least == 0

    def debug(self, event: str, **fields: str | float | None) -> None:
        """Write what happens often: a line a request."""
        if self._least == 0:
            self._open().debug(event, **fields)

    def info(self, event: str, **fields: str | float | None) -> None:
        """Write a change of state."""
        if self._least <= 1:
            self._open().info(event, **fields)

    def warning(self, event: str, **fields: str | float | None) -> None:
        """Write what went wrong and was dealt with."""
        if self._least <= 2:
            self._open().warning(event, **fields)

    def error(
        self, event: str, *, error: BaseException | None = None, **fields: str | float | None
    ) -> None:
        """Write what a person has to look at, with the traceback of `error`."""
        self._open().error(event, exc_info=error, **fields)

    def _open(self) -> FilteringBoundLogger:
        if self._logger is None:
            self._logger = _structlog(self._level)
        return self._logger


def _structlog(level: Level) -> FilteringBoundLogger:
    import structlog  # noqa: PLC0415 -- slow to load, see above

    def render(_: object, __: str, event: EventDict) -> str:
        exception = event.pop("exception", None)
        stamp, name = event.pop("timestamp"), event.pop("event")
        level = event.pop("level")
        facts = "".join(f" {key}={_plain(value)}" for key, value in event.items())
        line = f"{stamp} {level} {name}{facts}"
        return f"{line}\n{exception}" if exception else line

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Stderr,
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()


class _Stderr:
    """Standard error as it is now; whoever closed its other end does not want to know."""

    def write(self, line: str) -> None:
        """Write a line."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    debug = info = warning = error = write


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)
