"""Deadlines against a real store: what is late keeps nothing."""

from __future__ import annotations

import pytest


@pytest.mark.scenario(10)
async def test_a_create_with_deadline_zero_makes_nothing(desk, refusal):
    error = await refusal(desk.create({"text": "a"}, deadline_unix_ms=0))

    assert error.reason == "DEADLINE_EXCEEDED"
    assert (await refusal(desk.read())).reason == "NOT_FOUND"


async def test_the_latest_deadline_of_all_is_one_that_never_comes(desk):
    made = await desk.create({"text": "a"}, deadline_unix_ms=2**64 - 1)

    assert list(await desk.heads()) == [made.version]
    assert desk.provider.commits[0].deadline_unix_ms == 2**63 - 1


async def test_a_deadline_that_passes_before_the_commit_keeps_nothing(desk, refusal):
    root = await desk.create({"text": "a"})

    async def wait() -> None:
        desk.clock.now_unix_ms += 10

    for mutation in (desk.update, desk.delete):
        desk.provider.before_commit.append(wait)
        arguments = (root,) if mutation == desk.delete else (root, {"text": "b"})
        deadline = desk.clock.unix_ms() + 10
        error = await refusal(mutation(*arguments, deadline_unix_ms=deadline))
        assert error.reason == "DEADLINE_EXCEEDED"
    desk.provider.before_commit.append(wait)
    deadline = desk.clock.unix_ms() + 10
    error = await refusal(desk.create({"text": "b"}, "b", deadline_unix_ms=deadline))
    assert error.reason == "DEADLINE_EXCEEDED"

    assert list(await desk.heads()) == [root.version]
    assert len(await desk.changes()) == 1
