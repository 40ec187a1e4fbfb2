"""The parser of the command line, and the options that several commands have.

It is that of the standard library, because it is ready in the time in which others are loaded: to
ask a daemon how it is takes no more than its answer.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Command = Callable[..., int | None]
    Group = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage] -- the module names it nowhere else

PROGRAM: Final = "patchouli-db"
LONGEST_TIMEOUT_SECONDS: Final = 86_400.0
SHORTEST_TIMEOUT_SECONDS: Final = 0.001
TIMEOUT_SECONDS: Final = 10.0


class _Formatter(argparse.HelpFormatter):
    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],  # private to argparse, and only passed on
        prefix: str | None = None,
    ) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


class Parser(argparse.ArgumentParser):
    """A parser of ours: whole option names only."""

    def __init__(self, **settings: Any) -> None:  # those of its base
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **settings)


def add_group(parser: argparse.ArgumentParser) -> Group:
    """Return a place for commands in `parser`, which shows its help when none is given."""
    parser.set_defaults(command=None, parser=parser)
    return parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)


def add_command(group: Group, name: str, command: Command) -> argparse.ArgumentParser:
    """Return the parser of a command, which is described by the words of its function.

    The function gets each option as a keyword argument; what it returns is the exit code.
    """
    words = command.__doc__ or ""
    parser = group.add_parser(name, help=words.partition("\n")[0].rstrip("."), description=words)
    parser.set_defaults(command=command, parser=parser)
    return parser


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Let a command be told where the daemon listens."""
    parser.add_argument("--endpoint", metavar="PATH", help="socket of the daemon")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Let a command be told how long it may wait for an answer."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_timeout,
        default=TIMEOUT_SECONDS,
        help=f"how long to wait for an answer [default: {TIMEOUT_SECONDS:g}]",
    )


def add_wait(parser: argparse.ArgumentParser, *, default: float) -> None:
    """Let a command wait for an end; `default` seconds where no number is given."""
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=_wait,
        nargs="?",
        const=default,
        help=f"return when the daemon has ended [without a number: {default:g}]",
    )


def add_artifacts(parser: argparse.ArgumentParser) -> None:
    """Let a command be told where the bytes of artifacts are."""
    parser.add_argument("--artifacts", metavar="PATH", help="directory of artifact bytes")


def add_providers(parser: argparse.ArgumentParser) -> None:
    """Let a command be told the provider file."""
    parser.add_argument("--providers", metavar="FILE", help="provider file")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Let a command be told the policy file."""
    parser.add_argument("--config", metavar="FILE", help="policy file")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let a command print JSON."""
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _timeout(text: str) -> float:
    seconds = _number(text)
    if not SHORTEST_TIMEOUT_SECONDS <= seconds <= LONGEST_TIMEOUT_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not from {SHORTEST_TIMEOUT_SECONDS:g} to {LONGEST_TIMEOUT_SECONDS:g}"
        )
    return seconds


def _wait(text: str) -> float:
    seconds = _number(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
