from __future__ import annotations

import pytest
from patchouli.protocol import METHODS, RETRIEVE, RetrieveData, RetrieveParams, RpcError


def retrieve(**data: object) -> RetrieveData:
    params = METHODS[RETRIEVE].parse_params({"meta": {}, "data": {"query": "{}", **data}})
    assert isinstance(params, RetrieveParams)
    return params.data


def test_a_page_has_ten_hits_unless_another_number_is_asked_for() -> None:
    assert retrieve().limit == 10
    assert retrieve(limit=1).limit == 1
    assert retrieve(limit=100).limit == 100


@pytest.mark.clause("entity.retrieve")
@pytest.mark.parametrize("limit", [None, 0, 101, -1, 2**64, 10.0, "10", True])
def test_a_limit_is_an_integer_from_1_to_100(limit: object) -> None:
    with pytest.raises(RpcError):
        retrieve(limit=limit)


@pytest.mark.clause("shapes.lists")
def test_types_that_come_twice_count_once() -> None:
    assert retrieve(types=["b", "a", "b", "b"]).types == ("b", "a")
    assert retrieve(types=None).types is None


@pytest.mark.clause("shapes.non-empty")
@pytest.mark.parametrize("id_", [" ", "\x00", "\n", "a/b", "\N{GRINNING FACE}", "x" * 10_000])
def test_any_text_that_is_not_empty_is_an_id(id_: str) -> None:
    params = METHODS["patchouli.entity.read@1"].parse_params(
        {"meta": {}, "data": {"ref": {"type": "memo", "id": id_}}}
    )

    assert params.data.ref.id == id_
