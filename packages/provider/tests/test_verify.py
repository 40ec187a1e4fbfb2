from __future__ import annotations

import pytest
from patchouli.provider import check


def test_a_broken_invariant_is_named_when_checks_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchouli.provider.verify._is_enabled", True)

    check("I1 holds", lambda: True)
    with pytest.raises(AssertionError, match="I1 holds"):
        check("I1 holds", lambda: False)


def test_nothing_is_evaluated_when_checks_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchouli.provider.verify._is_enabled", False)
    asked: list[bool] = []

    check("I1 holds", lambda: asked.append(True) or False)

    assert asked == []
