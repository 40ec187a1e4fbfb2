from __future__ import annotations

import inspect

import pytest
from patchouli.provider import CorruptStoreError, UnavailableError
from patchouli.server.main import new_parser
from patchouli.server.saying import failures
from patchouli.server.settings import CommandError

COMMANDS = [
    ["init"],
    ["serve"],
    ["status"],
    ["checkpoint"],
    ["compact"],
    ["stop"],
    ["config", "check"],
    ["config", "show"],
    ["artifacts", "collect"],
    ["artifacts", "check"],
    ["export", "knowledge", "k"],
    ["tour"],
]
COMMON = {"command", "parser", "is_version_wanted"}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ([], None),
        (["--wait"], 30.0),
        (["--wait", "--json"], 30.0),
        (["--wait", "5"], 5.0),
        (["--wait", "0.5", "--json"], 0.5),
        (["--wait=7"], 7.0),
        (["--wait", "0"], 0.0),
    ],
)
def test_a_wait_without_seconds_gets_them(given: list[str], seconds: float | None) -> None:
    assert new_parser().parse_args(["stop", *given]).wait == seconds


def test_every_option_of_a_command_is_one_of_its_function() -> None:
    for words in COMMANDS:
        given = vars(new_parser().parse_args(words))
        command = given["command"]
        options = {name: given[name] for name in given.keys() - COMMON}

        inspect.signature(command).bind(**options)


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
