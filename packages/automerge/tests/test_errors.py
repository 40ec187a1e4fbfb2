"""Errors carry their facts, and one class stands for all of them."""

from __future__ import annotations

import pytest
from patchouli.automerge import (
    ActorReusedError,
    AutomergeError,
    CorruptDocumentError,
    DefectError,
    InvalidGraphError,
    InvalidJsonError,
    LimitExceededError,
    UnknownHeadError,
)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (
            InvalidJsonError(version="v1", offset=3, problem="a digit is missing"),
            ["v1", "3", "a digit is missing"],
        ),
        (InvalidJsonError(version=None, offset=0, problem="a lone surrogate"), ["surrogate"]),
        (LimitExceededError(limit="depth", maximum=127), ["depth", "127"]),
        (InvalidGraphError(problem="two nodes have one id", version="v1"), ["two nodes", "v1"]),
        (UnknownHeadError(head="00ff"), ["00ff"]),
        (ActorReusedError(actor="ab12"), ["ab12"]),
        (CorruptDocumentError(problem="it ends too early"), ["it ends too early"]),
        (DefectError(problem="panic: index out of bounds"), ["index out of bounds"]),
    ],
)
def test_the_message_is_made_of_the_facts(error: AutomergeError, facts: list[str]) -> None:
    for fact in facts:
        assert fact in str(error)


def test_every_error_is_one_of_this_package() -> None:
    leaves = {
        ActorReusedError,
        CorruptDocumentError,
        DefectError,
        InvalidGraphError,
        InvalidJsonError,
        LimitExceededError,
        UnknownHeadError,
    }

    assert set(AutomergeError.__subclasses__()) == leaves
