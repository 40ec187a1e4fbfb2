from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.backend import EntityResult, HitView, ReadResult, RetrieveResult, VersionView
from patchouli.protocol import ErrorCode, RpcError
from patchouli.server.encoding import (
    error_line,
    notification_line,
    read_json,
    result_line,
    retrieve_json,
)

TEXTS = st.text(min_size=1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS, TEXTS, TEXTS, VALUES, st.integers(-(2**63), 2**64 - 1) | st.text())
def test_a_line_says_what_was_put_into_it(
    kind: str, name: str, version: str, value: Any, request_id: int | str
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    result = EntityResult({"token": name}, VersionView(kind, name, version, text))

    line = result_line(request_id, result.to_json())

    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": request_id,
        "result": {
            "meta": {"token": name},
            "data": {
                "entity": {
                    "state": "active",
                    "ref": {"type": kind, "id": name},
                    "version": version,
                    "value": value,
                }
            },
        },
    }


def test_stored_text_is_put_in_place_and_not_written_anew() -> None:
    text = '{"a" : 1.0,  "big":18446744073709551615,"e":1E3}'

    line = read_json(ReadResult({}, "active", (VersionView("memo", "m", "v", text),)))

    assert text.encode() in line


def test_a_deletion_has_no_value() -> None:
    deleted = VersionView("memo", "m", "v2", None)
    active = VersionView("memo", "m", "v1", "null")

    answer = json.loads(read_json(ReadResult({}, "conflicted", (active, deleted))))

    assert answer["data"]["variants"] == [
        {"state": "active", "ref": {"type": "memo", "id": "m"}, "version": "v1", "value": None},
        {"state": "deleted", "ref": {"type": "memo", "id": "m"}, "version": "v2"},
    ]


def test_a_page_has_its_scores_and_its_cursor() -> None:
    page = RetrieveResult(
        {"next_cursor": "c"},
        (
            HitView(0.25, (VersionView("memo", "m", "v1", "1"),)),
            HitView(sys.float_info.max, (VersionView("memo", "n", "v2", "2"),)),
        ),
    )

    answer = json.loads(retrieve_json(page))

    assert answer["meta"] == {"next_cursor": "c"}
    assert [hit["score"] for hit in answer["data"]["hits"]] == [0.25, sys.float_info.max]


def test_an_empty_page_is_one() -> None:
    assert json.loads(retrieve_json(RetrieveResult({}, ()))) == {"meta": {}, "data": {"hits": []}}


@pytest.mark.parametrize("request_id", [None, 7, "s"])
def test_an_error_names_its_request(request_id: int | str | None) -> None:
    line = error_line(request_id, RpcError(ErrorCode.NOT_FOUND, "gone"))

    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": -32003, "message": "gone", "data": {"reason": "NOT_FOUND"}},
    }


def test_a_notification_has_no_id() -> None:
    line = notification_line("patchouli.changes.closed@1", {"cursor": "c"})

    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "method": "patchouli.changes.closed@1",
        "params": {"meta": {}, "data": {"cursor": "c"}},
    }
