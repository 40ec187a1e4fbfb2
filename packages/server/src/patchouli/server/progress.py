"""Progress of a command that may take a while: a bar where a person looks, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.progress import Progress

QUIET_SECONDS: Final = 1.0  # what is done within them needs no bar


@contextmanager
def progress_bar(title: str) -> Generator[Callable[[float], None]]:
    """Yield what takes the part that is done, from 0 to 1, and shows it on standard error."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    started = time.monotonic()
    bar: Progress | None = None

    def show(done: float) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < QUIET_SECONDS:
                return
            bar = _open_bar(title)
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _open_bar(title: str) -> Progress:
    from rich.console import Console  # noqa: PLC0415 -- slow to load, and most need no bar
    from rich.progress import Progress  # noqa: PLC0415 -- as above

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(title, total=1.0)
    bar.start()
    return bar
