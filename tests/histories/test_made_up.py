"""The checkers themselves: they accept what can be, and refuse exactly what cannot."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from tests.histories.brute import is_kept, is_possible
from tests.histories.extent import examples
from tests.histories.history import HistoryError, Operation
from tests.histories.linearizability import check_linearizable
from tests.histories.made_up import histories, session_histories, spoilt
from tests.histories.sessions import Guarantees, check_sessions
from tests.histories.units import check_units

if TYPE_CHECKING:
    from tests.histories.history import Change

History = tuple[list[Operation], list["Change"]]

UNITS = ("u-1", "u-2")


def accepts(check: Any, *arguments: Any, **options: Any) -> bool:
    try:
        check(*arguments, **options)
    except HistoryError:
        return False
    return True


@examples(40)
@given(histories(most=25), st.booleans())
def test_operations_that_happened_in_turn_are_linearizable(
    history: History,
    in_log_order: bool,  # noqa: FBT001 - drawn
) -> None:
    check_linearizable(*history, in_log_order=in_log_order)


@examples(40)
@given(histories(most=5).flatmap(spoilt), st.booleans())
def test_linearizability_is_what_trying_every_order_says(
    history: History,
    in_log_order: bool,  # noqa: FBT001 - drawn
) -> None:
    said = accepts(check_linearizable, *history, in_log_order=in_log_order)
    assert said == is_possible(*history, in_log_order=in_log_order)


@examples(40)
@given(histories(most=25, entity_count=3, units=UNITS))
def test_units_that_happened_in_turn_are_isolated_and_whole(history: History) -> None:
    check_units(*history)


@examples(40)
@given(histories(most=5, entity_count=2, units=("u-1",), merges=False).flatmap(spoilt))
def test_units_are_what_trying_every_order_says(history: History) -> None:
    assert accepts(check_units, *history) == is_possible(*history)


GUARANTEES = st.builds(Guarantees, st.booleans(), st.booleans())


@examples(40)
@given(GUARANTEES.flatmap(lambda g: st.tuples(st.just(g), session_histories(g))))
def test_sessions_that_are_as_old_as_they_may_be_are_kept(
    case: tuple[Guarantees, History],
) -> None:
    guarantees, history = case
    check_sessions(*history, guarantees)


@examples(40)
@given(
    st.tuples(GUARANTEES, GUARANTEES).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), session_histories(pair[1], most=5).flatmap(spoilt))
    )
)
def test_sessions_are_what_trying_every_moment_says(case: tuple[Guarantees, History]) -> None:
    guarantees, history = case
    assert accepts(check_sessions, *history, guarantees) == is_kept(*history, guarantees)


@pytest.mark.parametrize(
    ("check", "drawn"),
    [
        (check_linearizable, histories(most=5)),
        (check_units, histories(most=5, entity_count=2, units=("u-1",), merges=False)),
        (partial(check_sessions, guarantees=Guarantees()), session_histories(Guarantees(), most=5)),
    ],
    ids=["linearizability", "units", "sessions"],
)
def test_spoiling_can_make_a_history_wrong(check: Any, drawn: st.SearchStrategy[History]) -> None:
    """Or the tests above would compare nothing."""
    assert find(drawn.flatmap(spoilt), lambda history: not accepts(check, *history))
