from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from patchouli.server.logs import Log

if TYPE_CHECKING:
    import pytest


def test_an_event_is_one_line_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    Log().warning("connection.closed", reason="the peer does not read", seconds=30)

    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT[\d:.]+Z warning connection\.closed "
        r"reason='the peer does not read' seconds=30\n",
        line,
    )


def test_a_field_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Log().info("x", reason="a\n2031-01-01T00:00:00Z error forged")

    assert capsys.readouterr().err.count("\n") == 1


def test_levels_below_the_least_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log("warning")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")

    said = capsys.readouterr().err
    assert [line.split()[2] for line in said.splitlines()] == ["c", "d"]


def test_an_error_has_the_traceback_of_its_exception(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        Log().error("request.failed", error=error, request="ReadParams")

    said = capsys.readouterr().err
    assert "request.failed request=ReadParams\nTraceback" in said
    assert said.endswith("ZeroDivisionError\n")


def test_the_logging_library_is_loaded_by_the_first_event_alone() -> None:
    code = (
        "import sys; from patchouli.server.logs import Log; log = Log(); log.debug('x');"
        "print('structlog' in sys.modules); log.info('y'); print('structlog' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stdout == "False\nTrue\n"
