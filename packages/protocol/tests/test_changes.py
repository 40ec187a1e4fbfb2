from __future__ import annotations

import pytest
from patchouli.protocol import (
    CHANGE_EVENT,
    METHODS,
    SUBSCRIBE,
    SUBSCRIPTION_CLOSED,
    JsonObject,
    JsonValue,
    Reason,
    RpcError,
    SubscribeParams,
    SubscriptionClosedParams,
)

CHANGE: JsonObject = {
    "cursor": "44",
    "ref": {"type": "memo", "id": "memo-8"},
    "kind": "conflicted",
    "head_versions": ["c19e", "d802"],
}


def subscribe(data: JsonObject) -> SubscribeParams:
    params = METHODS[SUBSCRIBE].parse_params({"meta": {}, "data": data})
    assert isinstance(params, SubscribeParams)
    return params


@pytest.mark.clause("shapes.lists")
def test_names_in_a_filter_that_come_twice_count_once() -> None:
    filter_ = subscribe({"filter": {"types": ["b", "a", "b"], "ids": ["x", "x"]}}).data.filter

    assert filter_ is not None
    assert filter_.types == ("b", "a")
    assert filter_.ids == ("x",)


@pytest.mark.clause("shapes.lists")
@pytest.mark.parametrize("name", ["types", "ids"])
def test_an_empty_filter_list_is_refused_and_an_empty_filter_is_none(name: str) -> None:
    with pytest.raises(RpcError):
        subscribe({"filter": {name: []}})
    assert subscribe({"filter": {}}).data.filter == subscribe({"filter": {name: None}}).data.filter


@pytest.mark.clause("changes.event")
@pytest.mark.parametrize(
    "change",
    [
        {"head_versions": []},
        {"head_versions": ["a", "a"]},
        {"head_versions": [""]},
        {"kind": "merged"},
        {"cursor": ""},
        {"cursor": 44},
        {"surplus": 1},
    ],
)
def test_a_change_of_another_shape_is_none(change: JsonObject) -> None:
    event = METHODS[CHANGE_EVENT]
    data: JsonObject = {"subscription_id": "subscription-1", "change": CHANGE}

    assert event.parse_params({"meta": {"user_id": "mira"}, "data": data}) is not None
    with pytest.raises(RpcError):
        event.parse_params({"meta": {}, "data": data | {"change": CHANGE | change}})


@pytest.mark.clause("changes.closed")
@pytest.mark.parametrize("reason", [*(r.value for r in Reason), "SERVER_STOPPING"])
def test_a_subscription_is_closed_for_a_reason_of_the_contract(reason: str) -> None:
    assert closed(reason).data.reason == reason


@pytest.mark.clause("changes.closed")
@pytest.mark.parametrize("reason", ["", "BORED", None, 1, []])
def test_other_reasons_are_refused(reason: JsonValue) -> None:
    with pytest.raises(RpcError):
        closed(reason)


def closed(reason: JsonValue) -> SubscriptionClosedParams:
    params = METHODS[SUBSCRIPTION_CLOSED].parse_params(
        {"meta": {}, "data": {"subscription_id": "s", "cursor": "44", "reason": reason}}
    )
    assert isinstance(params, SubscriptionClosedParams)
    return params
