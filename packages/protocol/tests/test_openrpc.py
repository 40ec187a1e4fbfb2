from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from patchouli.protocol import METHODS, ErrorCode, JsonObject, openrpc_document
from patchouli.protocol.openrpc import text
from referencing import Registry
from referencing.jsonschema import DRAFT202012


def test_the_document_in_the_package_is_the_one_the_models_give() -> None:
    assert json.loads(text()) == openrpc_document(), (
        "run: python -m patchouli.protocol.openrpc > src/patchouli/protocol/data/openrpc.json"
    )


def test_the_models_give_the_same_text_each_time() -> None:
    assert text() == text()


def described() -> dict[str, JsonObject]:
    return {method["name"]: method for method in openrpc_document()["methods"]}


def test_every_method_is_described_with_params_result_and_errors() -> None:
    assert list(described()) == list(METHODS)
    for name, method in METHODS.items():
        document = described()[name]
        assert document["paramStructure"] == "by-name"
        assert [p["name"] for p in document["params"]] == list(method.params.model_fields)
        assert all(param["required"] for param in document["params"])
        assert document.get("x-capability") == method.capability
        assert document["x-clause"] == method.section
        if method.result is None:
            assert "result" not in document
            assert document["x-direction"] == "server-to-client"
        else:
            assert document["result"]["name"] == method.result.__name__
            errors = {reference["$ref"].rpartition("/")[2] for reference in document["errors"]}
            assert errors == {code.name for code in method.errors}


@pytest.mark.clause("errors.codes")
def test_the_errors_are_those_of_the_contract() -> None:
    errors = openrpc_document()["components"]["errors"]

    assert set(errors) == {code.name for code in ErrorCode}
    for code in ErrorCode:
        data = None if code.reason is None else {"reason": code.reason.value}
        assert errors[code.name]["code"] == int(code)
        assert errors[code.name].get("data") == data


def test_every_error_but_those_reserved_is_somewhere() -> None:
    used = {code for method in METHODS.values() for code in method.errors}
    frames = {r["$ref"].rpartition("/")[2] for r in openrpc_document()["x-frame-errors"]}

    assert {code.name for code in ErrorCode} - {code.name for code in used} - frames == {
        "FORBIDDEN"
    }


def test_the_schemas_are_valid_and_say_what_the_models_do() -> None:
    document = openrpc_document()
    registry = Registry().with_resource("urn:openrpc", DRAFT202012.create_resource(document))
    components = document["components"]["schemas"]
    for name in components:
        Draft202012Validator.check_schema(components[name])

    def is_valid(model: str, value: object) -> bool:
        schema = {"$ref": f"urn:openrpc#/components/schemas/{model}"}
        return Draft202012Validator(schema, registry=registry).is_valid(value)

    data: JsonObject = {"type": "memo", "value": [1]}
    assert is_valid("CreateParams", {"meta": {"user_id": "mira"}, "data": data})
    assert is_valid("CreateParams", {"meta": {"deadline_unix_ms": 0}, "data": data | {"id": None}})
    assert not is_valid("CreateParams", {"meta": {"deadline_unix_ms": -1}, "data": data})
    assert not is_valid("CreateParams", {"meta": {}, "data": data | {"surplus": 1}})
    assert not is_valid("CreateParams", {"meta": {}, "data": {"type": "memo"}})
    assert is_valid("DownloadChunkData", {"id": "a", "offset": 0, "max_bytes": 524288})
    assert not is_valid("DownloadChunkData", {"id": "a", "offset": 0, "max_bytes": 524289})
    assert not is_valid("DownloadChunkData", {"id": "a", "offset": 0, "max_bytes": 0})
