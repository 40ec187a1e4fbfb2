from __future__ import annotations

import pytest
from patchouli.protocol import EntityConflict, ErrorCode, Reason, RpcError

TABLE = {
    "PARSE_ERROR": (-32700, None),
    "NOT_A_REQUEST": (-32600, None),
    "UNKNOWN_METHOD": (-32601, None),
    "INTERNAL_ERROR": (-32603, None),
    "INVALID_REQUEST": (-32602, "INVALID_REQUEST"),
    "UNAUTHENTICATED": (-32001, "UNAUTHENTICATED"),
    "FORBIDDEN": (-32002, "FORBIDDEN"),
    "NOT_FOUND": (-32003, "NOT_FOUND"),
    "VERSION_CONFLICT": (-32004, "VERSION_CONFLICT"),
    "IDEMPOTENCY_CONFLICT": (-32005, "IDEMPOTENCY_CONFLICT"),
    "UNSUPPORTED_CAPABILITY": (-32006, "UNSUPPORTED_CAPABILITY"),
    "DEADLINE_EXCEEDED": (-32007, "DEADLINE_EXCEEDED"),
    "OVERLOADED": (-32009, "OVERLOADED"),
    "CURSOR_EXPIRED": (-32010, "CURSOR_EXPIRED"),
    "WORK_UNIT_EXPIRED": (-32011, "WORK_UNIT_EXPIRED"),
}


@pytest.mark.clause("errors.codes")
def test_codes_and_reasons_are_those_of_the_contract() -> None:
    assert {code.name: (int(code), code.reason) for code in ErrorCode} == TABLE
    assert {reason.value for reason in Reason} == {r for _, r in TABLE.values() if r}
    assert all(reason.code.reason is reason for reason in Reason)


@pytest.mark.clause("errors.data")
@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_error_carries_its_reason_or_no_data_at_all(code: ErrorCode) -> None:
    error = RpcError(code, "what happened")

    number, reason = TABLE[code.name]
    expected: dict[str, object] = {"code": number, "message": "what happened"}
    if reason is not None:
        expected["data"] = {"reason": reason}
    assert error.error_object() == expected


@pytest.mark.clause("errors.data")
def test_whether_a_retry_helps_stands_beside_the_reason() -> None:
    error = RpcError(ErrorCode.OVERLOADED, "the queue is full", retryable=True)

    assert error.data == {"reason": "OVERLOADED", "retryable": True}


@pytest.mark.clause("errors.data")
def test_codes_without_a_reason_have_no_data_even_where_a_retry_is_known() -> None:
    assert RpcError(ErrorCode.INTERNAL_ERROR, "lost", retryable=False).data is None


@pytest.mark.clause("errors.conflict")
def test_a_conflict_of_one_entity_names_its_heads() -> None:
    error = RpcError(ErrorCode.VERSION_CONFLICT, "heads moved", current_versions=["7e33"])

    assert error.response(6) == {
        "jsonrpc": "2.0",
        "id": 6,
        "error": {
            "code": -32004,
            "message": "heads moved",
            "data": {"reason": "VERSION_CONFLICT", "current_versions": ["7e33"]},
        },
    }


@pytest.mark.clause("errors.conflict")
def test_a_conflict_of_a_unit_names_each_entity() -> None:
    error = RpcError(
        ErrorCode.VERSION_CONFLICT,
        "unit drifted",
        conflicts=[EntityConflict("memo", "memo-2", ("91af", "b0"))],
    )

    assert error.data == {
        "reason": "VERSION_CONFLICT",
        "conflicts": [
            {"ref": {"type": "memo", "id": "memo-2"}, "current_versions": ["91af", "b0"]}
        ],
    }


@pytest.mark.clause("errors.conflict")
def test_versions_belong_to_one_kind_of_conflict_and_to_no_other_error() -> None:
    conflict = EntityConflict("memo", "memo-2", ("91af",))

    with pytest.raises(ValueError, match="not both"):
        RpcError(ErrorCode.VERSION_CONFLICT, "", current_versions=["a"], conflicts=[conflict])
    with pytest.raises(ValueError, match="only VERSION_CONFLICT"):
        RpcError(ErrorCode.NOT_FOUND, "", current_versions=["a"])
    with pytest.raises(ValueError, match="only VERSION_CONFLICT"):
        RpcError(ErrorCode.OVERLOADED, "", conflicts=[conflict])


def test_an_error_answers_to_the_id_it_carries_unless_told_another() -> None:
    error = RpcError(ErrorCode.NOT_A_REQUEST, "no method", request_id="r1")

    assert error.response()["id"] == "r1"
    assert error.response(7)["id"] == 7
    assert error.response(0)["id"] == 0
    assert RpcError(ErrorCode.PARSE_ERROR, "no JSON").response()["id"] is None


def test_its_text_names_what_clients_decide_on() -> None:
    assert str(RpcError(ErrorCode.NOT_FOUND, "no such memo")) == "NOT_FOUND: no such memo"
    assert str(RpcError(ErrorCode.PARSE_ERROR, "no JSON")) == "PARSE_ERROR: no JSON"
