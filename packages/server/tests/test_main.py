from __future__ import annotations

import pytest
from patchouli.provider import CorruptStoreError, UnavailableError
from patchouli.server.main import _with_wait_value
from patchouli.server.saying import failures
from patchouli.server.settings import CommandError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["stop"], ["stop"]),
        (["stop", "--wait"], ["stop", "--wait=30"]),
        (["stop", "--wait", "--json"], ["stop", "--wait=30", "--json"]),
        (["stop", "--wait", "5"], ["stop", "--wait", "5"]),
        (["stop", "--wait", "0.5", "--json"], ["stop", "--wait", "0.5", "--json"]),
        (["stop", "--wait=7"], ["stop", "--wait=7"]),
    ],
)
def test_a_wait_without_seconds_gets_them(given: list[str], meant: list[str]) -> None:
    assert _with_wait_value(given) == meant


def test_a_failure_of_the_clean_up_is_told_behind_the_first_one() -> None:
    def start() -> None:
        with failures():
            try:
                raise CommandError("cannot listen on /x")
            finally:
                raise UnavailableError("sqlite", "shutdown", "a reader did not end")

    with pytest.raises(CommandError) as caught:
        start()

    assert str(caught.value) == "cannot listen on /x\na reader did not end"


def test_a_cause_of_a_library_is_not_told() -> None:
    def start() -> None:
        with failures():
            try:
                raise ZeroDivisionError("words of a library")
            except ZeroDivisionError as error:
                raise CorruptStoreError("sqlite", "open", "the database is damaged") from error

    with pytest.raises(CommandError) as caught:
        start()

    assert str(caught.value) == "the database is damaged"


def test_an_error_of_the_system_names_its_file() -> None:
    with pytest.raises(CommandError) as caught, failures():
        raise PermissionError(13, "Permission denied", "/x/y")

    assert str(caught.value) == "/x/y: permission denied"


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), failures():
        raise ZeroDivisionError
