"""What commands print: JSON for programs, lines for people, one message for what went wrong."""

# ruff: noqa: PLC0415 -- imports inside functions keep the commands fast that do not need them

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def failures() -> Generator[None]:
    """Turn what prevents a command into one message; only those that load the engine need it.

    Raises:
        CommandError: Something did.
    """
    from patchouli.backend import EngineError
    from patchouli.provider import ProviderError

    try:
        yield
    except (CommandError, EngineError, ProviderError, OSError) as error:
        said: list[str] = []
        failure: BaseException | None = error
        while failure is not None:  # what failed first, and then while it was cleaned up
            if isinstance(failure, ProviderError):
                said.insert(0, failure.detail)
            elif isinstance(failure, CommandError | EngineError):
                said.insert(0, str(failure))
            said += getattr(failure, "__notes__", ())
            # One that was raised from another says what the other one said.
            failure = failure.__context__ if failure.__cause__ is None else None
        if not said and isinstance(error, OSError):
            place = f"{error.filename}: " if error.filename else ""
            said = [f"{place}{(error.strerror or 'no access').lower()}"]
        raise CommandError("\n".join(dict.fromkeys(said))) from error


def wants_json(as_json: bool) -> bool:  # noqa: FBT001 -- the option as it is
    """Return whether a control command prints JSON."""
    return as_json or not sys.stdout.isatty()


def say(line: str) -> None:
    """Print a line for people; a pipe that nobody reads any more is told by `BrokenPipeError`."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Print a line about what is wrong."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_json(document: object) -> None:
    """Print a document for programs."""
    say(json.dumps(document, indent=2, ensure_ascii=False))


def count_text(number: int, what: str) -> str:
    """Return `number` with its noun, such as `1 object` and `2 objects`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}".replace(",", " ")


def size_text(number: int) -> str:
    """Return a number of bytes as people read it."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return count_text(number, "byte")


def time_text(unix_ms: int) -> str:
    """Return a time as people read it."""
    import datetime

    return f"{datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
