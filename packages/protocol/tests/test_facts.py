"""The fact models, and their JSON Schemas in two engines, held against one another."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from patchouli.protocol import (
    ARTIFACT_URN,
    KNOWLEDGE_RELATION_URN,
    KNOWLEDGE_URN,
    ArtifactCore,
    ArtifactValue,
    KnowledgeRelationValue,
    KnowledgeValue,
    schemas,
)
from pydantic import ValidationError
from referencing import Registry, Resource

if TYPE_CHECKING:
    from patchouli.protocol import JsonObject, JsonValue

URNS = {
    "artifact": ARTIFACT_URN,
    "knowledge": KNOWLEDGE_URN,
    "knowledge_relation": KNOWLEDGE_RELATION_URN,
}
MODELS = {
    "artifact": ArtifactValue,
    "knowledge": KnowledgeValue,
    "knowledge_relation": KnowledgeRelationValue,
}


class Engine(Protocol):
    def is_valid(self, instance: Any) -> bool: ...


def python_engine(urn: str) -> Engine:
    registry = Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in schemas().items()
    )
    return Draft202012Validator({"$ref": urn}, registry=registry)


def rust_engine(urn: str) -> Engine:
    registry = jsonschema_rs.Registry(list(schemas().items()))
    return jsonschema_rs.Draft202012Validator({"$ref": urn}, registry=registry)


PYTHON = {kind: python_engine(urn) for kind, urn in URNS.items()}
RUST = {kind: rust_engine(urn) for kind, urn in URNS.items()}


def is_valid(kind: str, value: JsonValue) -> bool:
    """Ask the model and both engines, which have to agree."""
    try:
        MODELS[kind].from_value(value)
        by_model = True
    except ValidationError:
        by_model = False

    verdicts = {
        "model": by_model,
        "jsonschema": PYTHON[kind].is_valid(value),
        "jsonschema-rs": RUST[kind].is_valid(value),
    }
    assert len(set(verdicts.values())) == 1, (verdicts, value)
    return by_model


def metadata(schema: str, **core: JsonValue) -> JsonObject:
    return {
        "core": {
            "schema": schema,
            "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": "s-5"},
            "origin": {
                "provider": "mailbox",
                "binding": "mail-reader",
                "native_type": "mail",
                "native_id": "m-204",
                "native_revision": None,
            },
            "time": {
                "event_at": "2031-03-02T09:15:00Z",
                "source_created_at": None,
                "source_updated_at": "2031-02-11T16:00:00+02:00",
                "observed_at": "2031-03-02T09:20:00Z",
                "ingested_at": "2031-03-02T09:20:03.25Z",
            },
            "lifecycle": {"status": "active", "expires_at": "2032-01-01T00:00:00Z"},
            "provenance": [
                {
                    "kind": "observed",
                    "actor": "plugin:mail-reader",
                    "source": "mail:m-204",
                    "recorded_at": "2031-03-02T09:20:00Z",
                }
            ],
            **core,
        },
        "extensions": {"acme.mail": {"folder": "travel", "any": [None, {"deep": 1.5}]}},
    }


MANAGED: JsonObject = {
    "media_type": "text/csv",
    "name": "seats.csv",
    "byte_length": 14,
    "digest": "sha256:5211",
    "placement": {"kind": "managed", "provider": "node-oak", "key": "sha256/5211"},
    "metadata": metadata("patchouli.artifact@1"),
}
INDEXED: JsonObject = {
    "media_type": "text/markdown",
    "name": None,
    "byte_length": None,
    "digest": None,
    "placement": {
        "kind": "indexed",
        "provider": "drive",
        "locator": "drive://atlas/plan.md",
        "revision": "r19",
    },
    "metadata": metadata("patchouli.artifact@1", provenance=[]),
}
PROFILE: JsonObject = {
    "epistemic": "belief",
    "temporal": {"kind": "instant", "at": "2031-03-02T09:15:00Z"},
    "ownership": "user",
    "abstraction": "pattern",
    "persistence": "long_term",
    "retrieval": ["exact", "contextual"],
    "actionability": "informational",
}
KNOWLEDGE: JsonObject = {
    "content": {"kind": "text", "text": "Mira likes to sit by the window"},
    "metadata": metadata("patchouli.knowledge@1"),
    "artifact": [{"type": "artifact", "id": "plan-1", "role": "source"}],
    "profile": PROFILE,
}
STRUCTURED = KNOWLEDGE | {
    "content": {"kind": "structured", "value": {"seat": "12A", "n": [1, 2.5, None]}},
    "artifact": [],
    "profile": PROFILE
    | {
        "temporal": {
            "kind": "sequence",
            "items": [{"type": "knowledge", "id": "k-1"}, {"type": "knowledge", "id": "k-1"}],
        }
    },
}
LASTING = KNOWLEDGE | {
    "profile": PROFILE
    | {
        "temporal": {
            "kind": "interval",
            "start": "2031-03-02t09:15:00z",
            "end": "2030-03-02T09:15:00-23:59",
        }
    }
}
RELATION: JsonObject = {
    "type": "contradicts",
    "from": [{"type": "knowledge", "id": "k-31"}],
    "to": [{"type": "knowledge", "id": "k-4"}, {"type": "knowledge", "id": "k-31"}],
    "metadata": metadata("patchouli.knowledge-relation@1"),
}

EXAMPLES: list[tuple[str, JsonObject]] = [
    ("artifact", MANAGED),
    ("artifact", INDEXED),
    ("knowledge", KNOWLEDGE),
    ("knowledge", STRUCTURED),
    ("knowledge", LASTING),
    ("knowledge_relation", RELATION),
]


def places(value: JsonValue, *path: str | int) -> list[tuple[str | int, ...]]:
    """Return the path of every member and item in `value`, itself first."""
    found = [path]
    if isinstance(value, dict):
        for name, member in value.items():
            found += places(member, *path, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, *path, index)
    return found


PLACES = [(kind, value, path) for kind, value in EXAMPLES for path in places(value)]


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def replaced(value: JsonObject, path: tuple[str | int, ...], new: JsonValue) -> JsonValue:
    if not path:
        return new
    whole = deepcopy(value)
    at(whole, path[:-1])[path[-1]] = new
    return whole


@pytest.mark.clause("facts.artifact")
@pytest.mark.clause("facts.knowledge")
@pytest.mark.clause("facts.relation")
@pytest.mark.clause("facts.metadata")
@pytest.mark.parametrize(("kind", "value"), EXAMPLES)
def test_examples_are_valid_and_come_back(kind: str, value: JsonObject) -> None:
    assert is_valid(kind, value)
    assert MODELS[kind].from_value(value).to_value() == value


@pytest.mark.clause("facts.metadata")
@pytest.mark.parametrize(("kind", "value"), EXAMPLES)
def test_every_member_is_required_and_no_other_is_allowed(kind: str, value: JsonObject) -> None:
    for path in places(value):
        if "extensions" in path[:-1] or path[:2] == ("content", "value"):
            continue
        if isinstance(path[-1] if path else None, str):
            missing = deepcopy(value)
            del at(missing, path[:-1])[path[-1]]
            assert not is_valid(kind, missing)
        if isinstance(at(value, path), dict) and path[-1:] != ("extensions",):
            assert not is_valid(kind, replaced(value, (*path, "surplus"), None))


@pytest.mark.parametrize("new", [None, True, 0, 14.0, -1, "", "x", [], {}, [{}], {"kind": "x"}])
@pytest.mark.parametrize(("kind", "value"), EXAMPLES)
def test_models_and_schemas_agree_wherever_something_else_stands(
    kind: str, value: JsonObject, new: JsonValue
) -> None:
    verdicts = {path: is_valid(kind, replaced(value, path, new)) for path in places(value)}

    assert not all(verdicts.values())


donors = st.sampled_from([at(value, path) for _, value, path in PLACES])


@given(st.sampled_from(PLACES), donors, st.sampled_from(PLACES), donors)
def test_models_and_schemas_agree_on_values_patched_together(
    first: tuple[str, JsonObject, tuple[str | int, ...]],
    one: JsonValue,
    second: tuple[str, JsonObject, tuple[str | int, ...]],
    other: JsonValue,
) -> None:
    kind, value, path = first
    patched = replaced(value, path, deepcopy(one))
    if second[0] == kind and isinstance(patched, dict):
        # The first patch may have taken the second place away.
        with suppress(KeyError, IndexError, TypeError):
            patched = replaced(patched, second[2], deepcopy(other))

    is_valid(kind, patched)


TIMES_VALID = [
    "2031-03-02T09:15:00Z",
    "2031-03-02t09:15:00z",
    "2031-03-02T09:15:00.1Z",
    "2031-03-02T09:15:00.123456789012345Z",
    "2031-03-02T23:59:60Z",
    "2031-03-02T00:00:00+00:00",
    "2031-03-02T00:00:00-00:00",
    "2031-03-02T00:00:00+23:59",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2032-02-29T00:00:00Z",
    "2000-02-29T00:00:00Z",
    "2400-02-29T00:00:00Z",
    "0000-02-29T00:00:00Z",
    "2031-02-28T00:00:00Z",
    "2031-04-30T00:00:00Z",
    "2031-12-31T00:00:00Z",
]
TIMES_INVALID = [
    "",
    "yesterday",
    "2031-03-02",
    "2031-03-02T09:15:00",
    "2031-03-02 09:15:00Z",
    "2031-03-02T09:15Z",
    "2031-03-02T09:15:00.Z",
    "2031-03-02T09:15:00,5Z",
    "2031-03-02T24:00:00Z",
    "2031-03-02T09:60:00Z",
    "2031-03-02T09:15:61Z",
    "2031-03-02T09:15:00+24:00",
    "2031-03-02T09:15:00+02:60",
    "2031-03-02T09:15:00+0200",
    "2031-03-02T09:15:00+02",
    "2031-00-02T09:15:00Z",
    "2031-13-02T09:15:00Z",
    "2031-03-00T09:15:00Z",
    "2031-03-32T09:15:00Z",
    "2031-04-31T09:15:00Z",
    "2031-06-31T09:15:00Z",
    "2031-09-31T09:15:00Z",
    "2031-11-31T09:15:00Z",
    "2031-02-29T09:15:00Z",
    "2031-02-30T09:15:00Z",
    "1900-02-29T09:15:00Z",
    "2100-02-29T09:15:00Z",
    "02031-03-02T09:15:00Z",
    "31-03-02T09:15:00Z",
    "+2031-03-02T09:15:00Z",
    "2031-3-2T09:15:00Z",
    " 2031-03-02T09:15:00Z",
    "2031-03-02T09:15:00Z ",
    "2031-03-02T09:15:00Z\n",
    "\n2031-03-02T09:15:00Z",
    "2031-03-02T09:15:00Z\r",
    "2031-03-02T09:15:00Z\r\n",
    "2031-03-02T09:15:00Z\u2028",
    "2031-03-02T09:15:00Z\n2031-03-02T09:15:00Z",
    # digits and letters of other scripts
    "\u0662\u0660\u0663\u0661-03-02T09:15:00Z",
    "2031-03-02\uff3409:15:00Z",
]


def with_time(text: str) -> JsonValue:
    return replaced(KNOWLEDGE, ("metadata", "core", "time", "observed_at"), text)


@pytest.mark.clause("facts.scalars")
@pytest.mark.parametrize("text", TIMES_VALID)
def test_a_date_time_of_rfc_3339_is_a_timestamp(text: str) -> None:
    assert is_valid("knowledge", with_time(text))


@pytest.mark.clause("facts.scalars")
@pytest.mark.parametrize("text", TIMES_INVALID)
def test_anything_else_is_no_timestamp(text: str) -> None:
    assert not is_valid("knowledge", with_time(text))


@pytest.mark.clause("facts.scalars")
@given(st.dates(), st.times(), st.sampled_from(["Z", "z", "+05:30", "-11:00"]))
def test_every_day_of_the_calendar_is_a_timestamp(day: Any, time: Any, zone: str) -> None:
    assert is_valid("knowledge", with_time(f"{day.isoformat()}T{time.isoformat()}{zone}"))


@pytest.mark.clause("facts.scalars")
@given(
    st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32), st.sampled_from(["T", "t", " "])
)
def test_a_day_that_is_not_in_the_calendar_is_no_timestamp(
    year: int, month: int, day: int, letter: str
) -> None:
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = [31, 29 if is_leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    exists = 1 <= month <= 12 and 1 <= day <= days[month - 1]

    text = f"{year:04}-{month:02}-{day:02}{letter}00:00:00Z"

    assert is_valid("knowledge", with_time(text)) == (exists and letter != " ")


@pytest.mark.clause("facts.extensions")
@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("acme.mail", True),
        ("a.b", True),
        ("0.1", True),
        ("acme.mail.v2", True),
        ("a-.b_", True),
        ("acme", False),
        ("", False),
        (".", False),
        ("acme.", False),
        (".mail", False),
        ("acme..mail", False),
        ("-acme.mail", False),
        ("_acme.mail", False),
        ("acme.-mail", False),
        ("acme.mail\n", False),
        ("\nacme.mail", False),
        ("acme.mail\nacme.mail", False),
        ("acme.mail ", False),
        ("acme.ma\u00efl", False),
        ("\u0661.\u0662", False),
        ("acme/mail", False),
    ],
)
def test_extensions_are_named_with_a_dot(name: str, *, fits: bool) -> None:
    assert is_valid("knowledge", with_extensions({name: {}})) == fits


@pytest.mark.clause("facts.extensions")
def test_extensions_are_at_most_32_objects() -> None:
    assert is_valid("knowledge", with_extensions({}))
    assert is_valid("knowledge", with_extensions({f"a.{n}": {"k": n} for n in range(32)}))
    assert not is_valid("knowledge", with_extensions({f"a.{n}": {} for n in range(33)}))
    for wrong in (None, 1, "x", [], True):
        assert not is_valid("knowledge", with_extensions({"a.b": wrong}))


def with_extensions(extensions: JsonObject) -> JsonValue:
    return replaced(KNOWLEDGE, ("metadata", "extensions"), extensions)


@pytest.mark.clause("facts.artifact")
@pytest.mark.parametrize("member", ["byte_length", "digest"])
def test_a_managed_artifact_is_described_an_indexed_one_need_not_be(member: str) -> None:
    assert not is_valid("artifact", MANAGED | {member: None})
    assert is_valid("artifact", INDEXED | {member: None})
    assert is_valid("artifact", INDEXED | {member: MANAGED[member]})


@pytest.mark.clause("facts.artifact")
@pytest.mark.parametrize(
    ("byte_length", "fits"),
    [(0, True), (2**64 - 1, True), (14.0, True), (-1, False), (14.5, False), ("14", False)],
)
def test_a_length_is_a_whole_number(byte_length: JsonValue, *, fits: bool) -> None:
    assert is_valid("artifact", MANAGED | {"byte_length": byte_length}) == fits


@pytest.mark.clause("facts.artifact")
@pytest.mark.parametrize(
    ("media_type", "fits"),
    [
        ("a/b", True),
        ("a b/c;d=1", True),
        ("a", False),
        ("/b", False),
        ("a/", False),
        ("a/b/c", False),
    ],
)
def test_a_media_type_has_one_slash(media_type: str, *, fits: bool) -> None:
    assert is_valid("artifact", MANAGED | {"media_type": media_type}) == fits


@pytest.mark.clause("facts.metadata")
def test_the_schema_named_in_metadata_is_that_of_the_type() -> None:
    assert not is_valid("artifact", MANAGED | {"metadata": metadata("patchouli.knowledge@1")})
    assert not is_valid("knowledge", KNOWLEDGE | {"metadata": metadata("patchouli.knowledge@2")})
    assert not is_valid(
        "knowledge_relation", RELATION | {"metadata": metadata("patchouli.knowledge@1")}
    )


@pytest.mark.clause("facts.metadata")
def test_provenance_has_at_most_64_steps() -> None:
    step: JsonValue = {
        "kind": "derived",
        "actor": "a",
        "source": None,
        "recorded_at": "2031-03-02T09:20:00Z",
    }
    path = ("metadata", "core", "provenance")

    assert is_valid("knowledge", replaced(KNOWLEDGE, path, [step] * 64))
    assert not is_valid("knowledge", replaced(KNOWLEDGE, path, [step] * 65))


@pytest.mark.clause("facts.refs")
def test_artifact_references_are_at_most_32_and_none_twice() -> None:
    def refs(count: int) -> JsonValue:
        return [{"type": "artifact", "id": f"a-{n}", "role": "embedding"} for n in range(count)]

    one: JsonObject = {"type": "artifact", "id": "a", "role": "source"}
    assert is_valid("knowledge", KNOWLEDGE | {"artifact": refs(32)})
    assert not is_valid("knowledge", KNOWLEDGE | {"artifact": refs(33)})
    assert not is_valid("knowledge", KNOWLEDGE | {"artifact": [one, one]})
    assert is_valid("knowledge", KNOWLEDGE | {"artifact": [one, one | {"role": "attachment"}]})
    assert not is_valid("knowledge", KNOWLEDGE | {"artifact": [one | {"type": "knowledge"}]})


@pytest.mark.clause("facts.relation")
@pytest.mark.parametrize("side", ["from", "to"])
def test_both_sides_of_a_relation_have_references_none_twice(side: str) -> None:
    one: JsonObject = {"type": "knowledge", "id": "k-1"}

    assert not is_valid("knowledge_relation", RELATION | {side: []})
    assert not is_valid("knowledge_relation", RELATION | {side: [one, one]})
    assert is_valid("knowledge_relation", RELATION | {"from": [one], "to": [one]})


@pytest.mark.clause("facts.profile")
@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("epistemic", "unknown observation hypothesis belief knowledge derived"),
        ("ownership", "unknown world agent user shared"),
        ("abstraction", "unknown instance pattern concept rule"),
        ("persistence", "unknown working short_term long_term permanent"),
        ("actionability", "unknown informational directive constraint"),
    ],
)
def test_the_words_of_a_profile_are_those_of_the_contract(member: str, words: str) -> None:
    for word in words.split():
        assert is_valid("knowledge", KNOWLEDGE | {"profile": PROFILE | {member: word}})
    assert not is_valid("knowledge", KNOWLEDGE | {"profile": PROFILE | {member: "other"}})


@pytest.mark.clause("facts.profile")
def test_ways_of_retrieval_are_one_or_more_and_none_twice() -> None:
    def fits(*words: str) -> bool:
        return is_valid("knowledge", KNOWLEDGE | {"profile": PROFILE | {"retrieval": [*words]}})

    assert fits("unknown", "exact", "associative", "contextual", "causal", "procedural")
    assert not fits()
    assert not fits("exact", "exact")
    assert not fits("guessed")


@pytest.mark.clause("facts.profile")
def test_a_sequence_has_1_to_256_items_and_may_repeat_them() -> None:
    def fits(count: int) -> bool:
        items: JsonValue = [{"type": "knowledge", "id": "k"}] * count
        temporal: JsonValue = {"kind": "sequence", "items": items}
        return is_valid("knowledge", KNOWLEDGE | {"profile": PROFILE | {"temporal": temporal}})

    assert fits(1)
    assert fits(256)
    assert not fits(0)
    assert not fits(257)


@pytest.mark.clause("facts.profile")
@pytest.mark.parametrize(
    ("temporal", "fits"),
    [
        ({"kind": "unknown"}, True),
        ({"kind": "timeless"}, True),
        ({"kind": "timeless", "at": "2031-03-02T09:15:00Z"}, False),
        ({"kind": "instant"}, False),
        ({"kind": "interval", "start": "2031-03-02T09:15:00Z"}, False),
        ({"kind": "never"}, False),
        ({}, False),
    ],
)
def test_a_time_has_the_members_of_its_kind(temporal: JsonObject, *, fits: bool) -> None:
    assert is_valid("knowledge", KNOWLEDGE | {"profile": PROFILE | {"temporal": temporal}}) == fits


def test_a_member_whose_name_is_no_python_name_is_written_with_an_underscore() -> None:
    core = ArtifactValue.from_value(MANAGED).metadata.core

    built = ArtifactCore(
        schema_="patchouli.artifact@1",
        scope=core.scope,
        origin=core.origin,
        time=core.time,
        lifecycle=core.lifecycle,
        provenance=core.provenance,
    )

    assert built == core
    assert built.to_value()["schema"] == "patchouli.artifact@1"


def test_a_stored_value_is_read_by_its_own_names_only() -> None:
    renamed = {name.replace("from", "from_"): member for name, member in RELATION.items()}

    assert not is_valid("knowledge_relation", renamed)


def test_values_survive_the_way_through_text() -> None:
    for kind, value in EXAMPLES:
        assert MODELS[kind].from_value(json.loads(json.dumps(value))).to_value() == value
