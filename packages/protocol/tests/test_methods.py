from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from patchouli.protocol import (
    METHODS,
    ErrorCode,
    JsonObject,
    JsonValue,
    MalformedMessageError,
    RpcError,
    parse_deadline,
)

SPEC = (Path(__file__).parent.parent / "SPEC.md").read_text(encoding="utf-8")

REF: JsonObject = {"type": "memo", "id": "memo-8"}
ACTIVE: JsonObject = {"state": "active", "ref": REF, "version": "7e33", "value": {"n": None}}
DELETED: JsonObject = {"state": "deleted", "ref": REF, "version": "d802"}
METADATA: JsonObject = {
    "core": {
        "schema": "patchouli.artifact@1",
        "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": None},
        "origin": {
            "provider": None,
            "binding": None,
            "native_type": None,
            "native_id": None,
            "native_revision": None,
        },
        "time": {
            "event_at": None,
            "source_created_at": None,
            "source_updated_at": None,
            "observed_at": "2031-03-02T09:20:00Z",
            "ingested_at": "2031-03-02T09:20:03Z",
        },
        "lifecycle": {"status": "active", "expires_at": None},
        "provenance": [
            {
                "kind": "imported",
                "actor": "plugin:mail",
                "source": "mail:1",
                "recorded_at": "2031-03-02T09:20:03Z",
            }
        ],
    },
    "extensions": {"acme.mail": {"any": [1]}},
}

# data of each request: the members, all of them present
DATA: dict[str, JsonObject] = {
    "patchouli.control.status@1": {},
    "patchouli.control.checkpoint@1": {},
    "patchouli.control.compact@1": {"limit": 10, "with_due": True},
    "patchouli.control.shutdown@1": {},
    "patchouli.entity.create@1": {"type": "memo", "id": "memo-8", "value": {"line": "x"}},
    "patchouli.entity.read@1": {"ref": REF},
    "patchouli.entity.retrieve@1": {"query": "{}", "types": ["memo"], "limit": 1},
    "patchouli.entity.update@1": {"ref": REF, "value": {"line": "x"}},
    "patchouli.entity.delete@1": {"ref": REF},
    "patchouli.artifact.upload.begin@1": {
        "id": "plan-1",
        "media_type": "text/csv",
        "name": "seats.csv",
        "expected_byte_length": 14,
        "expected_digest": "sha256:00",
        "metadata": METADATA,
    },
    "patchouli.artifact.upload.chunk@1": {
        "upload_id": "5b0a",
        "offset": 0,
        "bytes_base64": "QUI=",
    },
    "patchouli.artifact.upload.commit@1": {"upload_id": "5b0a"},
    "patchouli.artifact.download.chunk@1": {
        "id": "plan-1",
        "version": "7e33",
        "offset": 0,
        "max_bytes": 6,
    },
    "patchouli.changes.subscribe@1": {
        "filter": {"types": ["memo"], "ids": ["memo-8"]},
        "after_cursor": "41",
    },
    "patchouli.changes.unsubscribe@1": {"subscription_id": "subscription-1"},
}
NOTIFICATIONS: dict[str, JsonObject] = {
    "patchouli.changes.event@1": {
        "subscription_id": "subscription-1",
        "change": {"cursor": "44", "ref": REF, "kind": "deleted", "head_versions": ["d802"]},
    },
    "patchouli.changes.closed@1": {
        "subscription_id": "subscription-1",
        "cursor": "44",
        "reason": "CURSOR_EXPIRED",
    },
    "patchouli.changes.boundary@1": {"subscription_id": "subscription-1", "cursor": "44"},
}
RESULTS: dict[str, list[JsonObject]] = {
    "patchouli.control.status@1": [
        {
            "ready": True,
            "provider": "routed",
            "generation": 4,
            "recovered_after_unclean_shutdown": False,
            "pid": 731,
            "started_at_unix_ms": 1_930_000_000_000,
            "active_connections": 1,
        }
    ],
    "patchouli.control.checkpoint@1": [{"completed": True}],
    "patchouli.control.compact@1": [
        {
            "changes": 4,
            "idempotency_records": 3,
            "work_units": 2,
            "versions": 1,
            "is_more_due": True,
            "due": due,
        }
        for due in (None, 0, 9)
    ],
    "patchouli.control.shutdown@1": [{"accepted": True}],
    "patchouli.entity.create@1": [{"entity": ACTIVE}],
    "patchouli.entity.read@1": [
        {"state": "conflicted", "variants": [DELETED, ACTIVE]},
        {"state": "deleted", "variants": [DELETED]},
    ],
    "patchouli.entity.retrieve@1": [
        {"hits": []},
        {"hits": [{"score": 0.81, "variants": [ACTIVE]}, {"score": 0, "variants": [ACTIVE]}]},
    ],
    "patchouli.entity.update@1": [{"entity": ACTIVE}],
    "patchouli.entity.delete@1": [{"entity": DELETED}],
    "patchouli.artifact.upload.begin@1": [{"upload_id": "5b0a", "max_chunk_bytes": 524288}],
    "patchouli.artifact.upload.chunk@1": [{"next_offset": 14}],
    "patchouli.artifact.upload.commit@1": [{"entity": ACTIVE}],
    "patchouli.artifact.download.chunk@1": [
        {"entity": ACTIVE, "offset": 14, "next_offset": 14, "eof": True, "bytes_base64": ""}
    ],
    "patchouli.changes.subscribe@1": [{"subscription_id": "subscription-1", "cursor": "41"}],
    "patchouli.changes.unsubscribe@1": [{"removed": True}, {"removed": False}],
}
HANDSHAKE: JsonObject = {
    "client": {"name": "orchard", "version": "3.2.0", "instance_id": "orchard-91"},
    "protocol_versions": [1],
    "capabilities": ["subscriptions"],
}

OPTIONAL = {
    ("patchouli.control.compact@1", "limit"),
    ("patchouli.control.compact@1", "with_due"),
    ("patchouli.entity.create@1", "id"),
    ("patchouli.entity.retrieve@1", "types"),
    ("patchouli.entity.retrieve@1", "limit"),
    ("patchouli.artifact.upload.begin@1", "id"),
    ("patchouli.artifact.upload.begin@1", "name"),
    ("patchouli.artifact.upload.begin@1", "expected_byte_length"),
    ("patchouli.artifact.upload.begin@1", "expected_digest"),
    ("patchouli.artifact.download.chunk@1", "version"),
    ("patchouli.changes.subscribe@1", "filter"),
    ("patchouli.changes.subscribe@1", "filter.types"),
    ("patchouli.changes.subscribe@1", "filter.ids"),
    ("patchouli.changes.subscribe@1", "after_cursor"),
}
NULLABLE = OPTIONAL - {
    ("patchouli.control.compact@1", "limit"),
    ("patchouli.control.compact@1", "with_due"),
    ("patchouli.entity.retrieve@1", "limit"),
}
# of upload metadata: absent counts as null, so that both are fine
NULLABLE_METADATA = {
    *(f"metadata.core.scope.{n}" for n in ("tenant", "workspace", "user", "session")),
    *(
        f"metadata.core.origin.{n}"
        for n in ("provider", "binding", "native_type", "native_id", "native_revision")
    ),
    *(f"metadata.core.time.{n}" for n in ("event_at", "source_created_at", "source_updated_at")),
    "metadata.core.lifecycle.expires_at",
    "metadata.core.provenance.0.source",
}
ANY_JSON = {"value"}
OPEN = {"metadata.extensions", "metadata.extensions.acme.mail"}


def members(value: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield every member of `data` with its path, those of any JSON and of extensions apart."""
    if path in ANY_JSON or path in OPEN:
        return
    if isinstance(value, dict):
        for name, member in value.items():
            inner = f"{path}.{name}" if path else name
            yield inner, member
            yield from members(member, inner)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from members(item, f"{path}.{index}")


MEMBERS = [(method, path, value) for method, data in DATA.items() for path, value in members(data)]
OBJECTS = [(method, "") for method in DATA] + [
    (method, path)
    for method, path, value in MEMBERS
    if isinstance(value, dict) and path not in OPEN | ANY_JSON
]


def changed(data: JsonObject, path: str, *value: JsonValue) -> JsonObject:
    """Return `data` with the member at `path` replaced, or left out where there is no value."""
    whole = deepcopy(data)
    target: object = whole
    *steps, last = path.split(".")
    for step in steps:
        target = target[int(step)] if isinstance(target, list) else target[step]
    if value:
        target[last] = value[0]
    else:
        del target[last]
    return whole


def parsed(method: str, data: JsonValue) -> object:
    return METHODS[method].parse_params({"meta": {}, "data": data}).data


def refusal(method: str, params: JsonValue) -> str:
    with pytest.raises(RpcError) as caught:
        METHODS[method].parse_params(params)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.message


def test_the_table_has_every_method_of_the_contract() -> None:
    assert set(METHODS) == {"patchouli.protocol.handshake@1", *DATA, *NOTIFICATIONS}
    assert {name for name, method in METHODS.items() if method.is_notification} == set(
        NOTIFICATIONS
    )
    assert all(name == method.name for name, method in METHODS.items())
    assert all(f"`{method.section}`:" in SPEC for method in METHODS.values())


@pytest.mark.clause("handshake.gate")
def test_the_table_says_which_capability_a_method_needs() -> None:
    def family(name: str) -> str:
        return name.split(".")[1]

    by_family = {"artifact": "artifacts", "changes": "subscriptions"}
    lifecycle = {"patchouli.changes.closed@1", "patchouli.changes.boundary@1"}
    assert {name: method.capability for name, method in METHODS.items()} == {
        name: "subscription-lifecycle" if name in lifecycle else by_family.get(family(name))
        for name in METHODS
    }


def test_methods_name_the_errors_they_may_be_answered_with() -> None:
    for method in METHODS.values():
        if method.is_notification:
            assert method.errors == ()
            continue
        assert ErrorCode.INVALID_REQUEST in method.errors
        assert len(set(method.errors)) == len(method.errors)
        assert (ErrorCode.UNSUPPORTED_CAPABILITY in method.errors) >= bool(method.capability)
        assert (ErrorCode.DEADLINE_EXCEEDED in method.errors) == ("handshake" not in method.name)


@pytest.mark.clause("shapes.meta-data")
@pytest.mark.parametrize("method", DATA)
def test_params_are_meta_and_data(method: str) -> None:
    meta: JsonObject = {"workspace_id": "atlas", "anything": [1]}
    data = DATA[method]

    params = METHODS[method].parse_params({"meta": meta, "data": data})

    assert params.meta is meta
    assert refusal(method, {"data": data}) == "params.meta is missing"
    assert refusal(method, {"meta": {}}) == "params.data is missing"
    assert refusal(method, {"meta": {}, "data": data, "more": 1}) == "params.more is not known here"
    for wrong in (None, True, 1, 1.5, "x", []):
        assert refusal(method, {"meta": wrong, "data": data}) == "params.meta must be an object"
        assert refusal(method, {"meta": {}, "data": wrong}) == "params.data must be an object"


@pytest.mark.clause("envelope.params")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("params", [{}, [], [{}, {}], None, 1, 1.5, "x", True])
def test_params_of_another_kind_are_refused(method: str, params: JsonValue) -> None:
    refusal(method, params)


@pytest.mark.clause("shapes.closed")
@pytest.mark.parametrize(("method", "path"), OBJECTS)
def test_an_unknown_member_is_refused_everywhere_in_data(method: str, path: str) -> None:
    place = f"{path}.surplus" if path else "surplus"
    data = changed(DATA[method], place, None)

    assert refusal(method, {"meta": {}, "data": data}).endswith("surplus is not known here")


@pytest.mark.parametrize(("method", "path", "value"), MEMBERS)
def test_a_member_may_be_left_out_only_where_the_contract_says_so(
    method: str, path: str, value: JsonValue
) -> None:
    data = changed(DATA[method], path)

    if (method, path) in OPTIONAL or path in NULLABLE_METADATA:
        assert parsed(method, data) is not None
    else:
        refusal(method, {"meta": {}, "data": data})


@pytest.mark.clause("shapes.null")
@pytest.mark.parametrize(("method", "path", "value"), MEMBERS)
def test_null_stands_for_left_out_and_for_nothing_else(
    method: str, path: str, value: JsonValue
) -> None:
    data = changed(DATA[method], path, None)

    if path in ANY_JSON:
        assert parsed(method, data) is not None
    elif (method, path) in NULLABLE or path in NULLABLE_METADATA:
        assert parsed(method, data) == parsed(method, changed(DATA[method], path))
    else:
        refusal(method, {"meta": {}, "data": data})


@pytest.mark.clause("shapes.strict")
@pytest.mark.clause("shapes.non-empty")
@pytest.mark.clause("shapes.lists")
@pytest.mark.parametrize(
    ("method", "path", "value"),
    # metadata is held against its JSON Schema elsewhere (test_facts.py)
    [member for member in MEMBERS if not member[1].startswith("metadata.")],
)
@pytest.mark.parametrize("other", [True, 0, 1.0, "", "0", [], {}, [None], [[]]], ids=repr)
def test_a_member_of_another_type_is_refused(
    method: str, path: str, value: JsonValue, other: JsonValue
) -> None:
    data = changed(DATA[method], path, other)
    fits = (
        path in ANY_JSON
        or (other == "0" and isinstance(value, str) and path != "media_type")
        or (type(other) is type(value) and type(other) in {int, bool} and path != "limit")
        or (other == {} and path == "filter")
    )

    if fits:
        assert parsed(method, data) is not None
    else:
        refusal(method, {"meta": {}, "data": data})


@pytest.mark.parametrize(("method", "data"), NOTIFICATIONS.items())
def test_notifications_are_read(method: str, data: JsonObject) -> None:
    params = METHODS[method].parse_params({"meta": {}, "data": data})

    assert params.model_dump(mode="json") == {"meta": {}, "data": data}
    for path, _ in members(data):
        refusal(method, {"meta": {}, "data": changed(data, path)})
        refusal(method, {"meta": {}, "data": changed(data, path, None)})


@pytest.mark.parametrize(
    ("method", "data"), [(method, data) for method, all_ in RESULTS.items() for data in all_]
)
def test_results_are_read_and_written_alike(method: str, data: JsonObject) -> None:
    result: JsonObject = {"meta": {"next_cursor": "c"}, "data": data}

    assert METHODS[method].parse_result(result).model_dump(mode="json") == result


@pytest.mark.parametrize("method", RESULTS)
def test_a_result_of_another_shape_is_malformed(method: str) -> None:
    data = RESULTS[method][0]
    wrong: list[JsonValue] = [
        {"meta": {}, "data": changed(data, path)}
        for path, _ in members(data)
        if "value" not in path
    ]
    wrong += [{}, [], None, {"meta": {}, "data": data | {"surplus": 1}}, {"data": data}]

    for result in wrong:
        with pytest.raises(MalformedMessageError, match=r"^result"):
            METHODS[method].parse_result(result)


@pytest.mark.clause("shapes.version")
def test_a_tombstone_has_no_value_and_an_active_version_has_one() -> None:
    read = METHODS["patchouli.entity.read@1"]
    bare = {name: member for name, member in ACTIVE.items() if name != "value"}

    for variant in (DELETED | {"value": None}, bare, ACTIVE | {"state": "gone"}, bare | {"ref": 1}):
        with pytest.raises(MalformedMessageError):
            read.parse_result({"meta": {}, "data": {"state": "active", "variants": [variant]}})


def test_a_notification_has_no_result() -> None:
    with pytest.raises(TypeError):
        METHODS["patchouli.changes.event@1"].parse_result({})


def test_models_are_frozen() -> None:
    params = METHODS["patchouli.entity.read@1"].parse_params({"meta": {}, "data": {"ref": REF}})

    with pytest.raises(ValueError, match="frozen"):
        params.meta = {}


@pytest.mark.parametrize("method", DATA)
def test_what_a_client_builds_from_models_is_accepted(method: str) -> None:
    built = METHODS[method].parse_params({"meta": {}, "data": DATA[method]}).model_dump(mode="json")

    assert built["data"] == DATA[method]
    assert METHODS[method].parse_params(built).model_dump(mode="json") == built


@pytest.mark.clause("errors.opaque")
def test_messages_name_the_member_in_words_of_our_own() -> None:
    begin = DATA["patchouli.artifact.upload.begin@1"]
    cases: list[tuple[str, JsonObject, str]] = [
        ("patchouli.entity.read@1", {"ref": {"type": "", "id": "x"}}, "ref.type must not be empty"),
        ("patchouli.entity.read@1", {"ref": 1}, "ref must be an object"),
        ("patchouli.entity.retrieve@1", {"query": 1}, "query must be a string"),
        ("patchouli.entity.retrieve@1", {"query": "q", "limit": 0}, "limit must be at least 1"),
        ("patchouli.entity.retrieve@1", {"query": "q", "limit": 101}, "limit must be at most 100"),
        ("patchouli.entity.retrieve@1", {"query": "q", "limit": 1.0}, "limit must be an integer"),
        ("patchouli.entity.retrieve@1", {"query": "q", "types": "t"}, "types must be an array"),
        ("patchouli.entity.retrieve@1", {"query": "q", "types": []}, "types has too few items"),
        (
            "patchouli.entity.retrieve@1",
            {"query": "q", "types": ["t", 1]},
            "types[1] must be a string",
        ),
        (
            "patchouli.artifact.upload.begin@1",
            begin | {"media_type": "text"},
            "media_type has not the required form",
        ),
        (
            "patchouli.artifact.upload.begin@1",
            changed(begin, "metadata.core.lifecycle.status", "secret"),
            "metadata.core.lifecycle.status must be 'active', 'superseded' or 'retracted'",
        ),
    ]

    for method, data, message in cases:
        assert refusal(method, {"meta": {}, "data": data}) == f"params.data.{message}"


@pytest.mark.clause("errors.opaque")
def test_messages_never_quote_a_value() -> None:
    for method, path, _ in MEMBERS:
        if path not in ANY_JSON | OPEN:
            wrong: JsonValue = [[["secret"]]]
            message = refusal(method, {"meta": {}, "data": changed(DATA[method], path, wrong)})
            assert "secret" not in message


def test_a_request_with_very_many_faults_is_refused_without_listing_them() -> None:
    unknown: JsonObject = {f"k{n}": 1 for n in range(20_000)}
    begin = DATA["patchouli.artifact.upload.begin@1"]

    assert refusal("patchouli.entity.read@1", {"meta": {}, "data": {"ref": REF, **unknown}}) == (
        "params have more than 100 faults"
    )
    assert refusal(
        "patchouli.entity.retrieve@1", {"meta": {}, "data": {"query": "q", "types": [1] * 200_000}}
    ) == ("params.data.types[0] must be a string")
    assert refusal(
        "patchouli.artifact.upload.begin@1",
        {"meta": {}, "data": changed(begin, "metadata.extensions", unknown)},
    ) == ("params.data.metadata.extensions has too many items")


@pytest.mark.clause("errors.opaque")
def test_a_message_is_short_whatever_a_member_is_called() -> None:
    data: JsonObject = {"ref": REF, "n" * 100_000: 1}

    assert len(refusal("patchouli.entity.read@1", {"meta": {}, "data": data})) < 200


def test_values_and_meta_are_kept_as_the_objects_they_are() -> None:
    value: JsonValue = {"deep": [{"n": 1}]}

    params = METHODS["patchouli.entity.create@1"].parse_params(
        {"meta": {}, "data": {"type": "memo", "value": value}}
    )

    assert params.data.value is value


@pytest.mark.clause("shapes.strict")
@pytest.mark.parametrize("value", [None, True, 0, 1.5, "", [], {}, {"a": None}])
def test_any_json_is_a_value(value: JsonValue) -> None:
    assert parsed("patchouli.entity.update@1", {"ref": REF, "value": value}).value is value


@pytest.mark.clause("deadline.shape")
@pytest.mark.parametrize("deadline", [0, 1, 1_930_000_060_000, 2**64 - 1])
def test_a_deadline_is_an_unsigned_integer(deadline: int) -> None:
    assert parse_deadline({"deadline_unix_ms": deadline, "workspace_id": "atlas"}) == deadline


def test_a_deadline_may_be_absent() -> None:
    assert parse_deadline({"workspace_id": "atlas"}) is None


@pytest.mark.clause("deadline.shape")
@pytest.mark.parametrize(
    "deadline", [None, -1, 2**64, 1.0, 1.5, -0.0, True, False, "1", "", [], [1], {}]
)
def test_anything_else_is_no_deadline(deadline: JsonValue) -> None:
    with pytest.raises(RpcError) as caught:
        parse_deadline({"deadline_unix_ms": deadline})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
