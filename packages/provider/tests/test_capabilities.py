from __future__ import annotations

from dataclasses import fields

import pytest
from patchouli.provider import Capabilities, UnsupportedError

NAMES = [claim.name for claim in fields(Capabilities)]


def test_nothing_is_claimed_unless_said() -> None:
    assert not any(getattr(Capabilities(), name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_both_claims_only_what_each_claims(name: str) -> None:
    everything = Capabilities(**dict.fromkeys(NAMES, True))
    without = Capabilities(**{other: other != name for other in NAMES})

    assert everything.both(everything) == everything
    assert everything.both(without) == without
    assert without.both(everything) == without


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_claim_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        Capabilities().require(name, provider="shelf", operation="read")

    assert refused.value.provider == "shelf"
    assert refused.value.operation == "read"
    assert name in refused.value.detail


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_that_is_made_is_not_refused(name: str) -> None:
    Capabilities(**{name: True}).require(name, provider="shelf", operation="read")


def test_an_unknown_claim_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AttributeError):
        Capabilities().require("telepathy", provider="shelf", operation="read")
