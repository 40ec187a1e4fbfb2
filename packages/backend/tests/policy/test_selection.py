"""What a request selects, and in which order it fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import (
    UNBOUND,
    InvalidRequestError,
    Selection,
    Selector,
    load_policy,
    read_resource,
)
from patchouli.backend.policy import keys
from patchouli.backend.policy.selection import REMEMBERED
from patchouli.provider import Consistency, SessionRequirement, Source, WorkUnit

if TYPE_CHECKING:
    from collections.abc import Callable

FALLBACK = "entity_types.recipe.fallback"
CONSISTENCY = f"{FALLBACK}.consistency"
RULE = "entity_types.recipe.rules[0].behavior"
META: dict[str, Any] = {"ctx": {"team": "north"}}
SCOPE = '{"team":"north"}'
ROOT_KEY = '{"scope":{"team":"north"},"fields":{}}'

Make = "Callable[..., Selector]"


def key(fields: str) -> str:
    return f'{{"scope":{SCOPE},"fields":{fields}}}'


@pytest.fixture
def selector(edited_text: Callable[..., str]) -> Callable[..., Selector]:
    def make(*edits: tuple[str, Any]) -> Selector:
        return Selector(load_policy(edited_text(*edits)).policy)

    return make


def refusal(ask: Callable[[], object]) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        ask()
    return caught.value


def test_minimal_request(selector: Callable[..., Selector]) -> None:
    selection = selector().select("recipe", META)

    assert selection.entity_type == "recipe"
    assert selection.rule is None
    assert selection.scope.text == SCOPE
    assert selection.scope.fields == {"team": "north"}
    assert selection.bindings == {"team": "north"}
    assert selection.sources == {Source.AUTHORITY}
    assert selection.minimum_tokens == ()
    assert selection.causal_aliases == ()
    assert selection.linearization_key is None
    assert selection.sessions == ()
    assert selection.ordering_key is None
    assert selection.strategy == "merge"
    assert selection.base_versions is UNBOUND
    assert [rule.path for rule in selection.merge_rules] == ["/steps"]
    assert selection.otherwise == "mvcc"
    assert selection.idempotency_key is None
    assert not selection.is_keyed
    assert selection.unit is None
    assert selection.bindings == {"team": "north"}


def test_texts_that_come_again_select_what_was_selected(
    selector: Callable[..., Selector],
) -> None:
    made = selector()
    first = made.select("recipe", META)

    assert made.select("recipe", {"ctx": {"team": "north", "more": 1}, "deadline": 7}) is first
    assert made.select("recipe", {"ctx": {"team": "south"}}).scope.text == '{"team":"south"}'
    long = {"ctx": {"team": "n" * 600}}
    assert made.select("recipe", long) is not made.select("recipe", long)


def test_what_was_refused_is_refused_again(selector: Callable[..., Selector]) -> None:
    made = selector(("meta_fields.team.schema", {"type": "string", "minLength": 2}))

    for _ in range(2):
        assert refusal(lambda: made.select("recipe", {"ctx": {"team": "n"}})).pointer
        assert refusal(lambda: made.select("recipe", {"ctx": {"team": ["n"]}})).pointer


def test_selection_cannot_be_changed(selector: Callable[..., Selector]) -> None:
    selection = selector().select("recipe", META)

    with pytest.raises(AttributeError):
        selection.strategy = "mvcc"  # pyright: ignore[reportAttributeAccessIssue] -- what is tested


def test_step_1_unknown_type_comes_first(selector: Callable[..., Selector]) -> None:
    error = refusal(lambda: selector().select("soup", {"call_id": 1}))

    assert error.pointer == "data/type"
    assert "recipe" in error.message


def test_step_2_invalid_value_comes_before_a_missing_scope(
    selector: Callable[..., Selector],
) -> None:
    assert refusal(lambda: selector().select("recipe", {"call_id": 1})).pointer == "meta/call_id"


def test_step_2_invalid_value_never_selects_a_weaker_rule(
    selector: Callable[..., Selector],
) -> None:
    meta = {**META, "unit": "", "call_id": "c"}

    assert refusal(lambda: selector().select("recipe", meta)).pointer == "meta/unit"


RULES: list[tuple[str, list[str]]] = [
    ("both", ["call", "unit"]),
    ("one", ["call"]),
    ("s", ["session"]),
]


@pytest.mark.parametrize(
    ("meta", "rule"),
    [
        ({}, None),
        ({"unit": "u"}, None),
        ({"call_id": "c"}, "one"),
        ({"call_id": "c", "unit": "u"}, "both"),
        ({"session": "s"}, "s"),
        ({"call_id": "c", "session": "s"}, "one"),
        ({"call_id": "c", "unit": "u", "session": "s"}, "both"),
    ],
)
def test_step_3_first_rule_whose_aliases_are_all_present(
    meta: dict[str, Any],
    rule: str | None,
    small: dict[str, Any],
    selector: Callable[..., Selector],
) -> None:
    fallback = small["entity_types"]["recipe"]["fallback"]
    rules = [
        {"name": name, "when": {"all_present": aliases}, "behavior": fallback}
        for name, aliases in RULES
    ]

    selection = selector(("entity_types.recipe.rules", rules)).select("recipe", {**META, **meta})

    assert selection.rule == rule


@pytest.mark.parametrize("value", [None, "", False, [], 0])
def test_step_3_presence_decides_and_never_a_value(
    value: Any, selector: Callable[..., Selector]
) -> None:
    selected = selector(("meta_fields.unit.schema", True), ("meta_fields.call.schema", True))

    selection = selected.select("recipe", {**META, "unit": value, "call_id": value})

    assert selection.rule == "grouped"


def test_step_3_selected_rule_is_not_left_when_it_fails(
    selector: Callable[..., Selector],
) -> None:
    ordering = {"kind": "serialize", "key_by": ["session"]}
    selected = selector((f"{RULE}.consistency.commit.ordering", ordering))

    error = refusal(lambda: selected.select("recipe", {**META, "unit": "u", "call_id": "c"}))

    assert error.pointer == "meta/session"


@pytest.mark.parametrize("meta", [{}, {"ctx": {}}, {"ctx": "north"}, {"team": "north"}])
def test_step_4_missing_scope_alias(
    meta: dict[str, Any], selector: Callable[..., Selector]
) -> None:
    for ask in (lambda: selector().select("recipe", meta), lambda: selector().scope(meta)):
        error = refusal(ask)
        assert error.pointer == "meta/ctx/team"
        assert "scope" in error.message


def test_step_4_comes_before_step_5(selector: Callable[..., Selector]) -> None:
    selected = selector(
        (f"{CONSISTENCY}.commit.ordering", {"kind": "serialize", "key_by": ["call"]})
    )

    assert refusal(lambda: selected.select("recipe", {})).pointer == "meta/ctx/team"
    assert refusal(lambda: selected.select("recipe", META)).pointer == "meta/call_id"


@pytest.mark.parametrize(
    ("scope_by", "ctx", "text"),
    [
        ([], {}, "{}"),
        (["team"], {"team": "north"}, '{"team":"north"}'),
        (["team", "member"], {"team": "n", "member": 7}, '{"member":7,"team":"n"}'),
        (["member", "team"], {"team": "n", "member": 7}, '{"member":7,"team":"n"}'),
        (["team"], {"team": 'ä"/\u2028\n'}, '{"team":"ä\\"/\u2028\\n"}'),
        (["member"], {"member": True}, '{"member":true}'),
        (["member"], {"member": None}, '{"member":null}'),
        (["member"], {"member": [1, {"b": 1, "a": 2}]}, '{"member":[1,{"a":2,"b":1}]}'),
    ],
)
def test_scope_text_is_canonical(
    scope_by: list[str], ctx: dict[str, Any], text: str, selector: Callable[..., Selector]
) -> None:
    selected = selector(("entity_identity.scope_by", scope_by), ("meta_fields.member.schema", True))
    for _ in range(2):  # the second time it is remembered
        scope = selected.scope({"ctx": ctx})

        assert scope.text == text
        assert scope.fields == {alias: ctx[alias] for alias in scope_by}
        assert scope.key == f'{{"scope":{text},"fields":{{}}}}'


def test_values_that_a_dictionary_confuses_are_different_scopes(
    selector: Callable[..., Selector],
) -> None:
    selected = selector(
        ("entity_identity.scope_by", ["member"]), ("meta_fields.member.schema", True)
    )

    texts = [selected.scope({"ctx": {"member": value}}).text for value in (1, True, 1.0, "1", 1)]

    assert texts == [
        '{"member":1}',
        '{"member":true}',
        '{"member":1.0}',
        '{"member":"1"}',
        '{"member":1}',
    ]


def test_memory_of_scopes_is_bounded(
    monkeypatch: pytest.MonkeyPatch, selector: Callable[..., Selector]
) -> None:
    monkeypatch.setattr(keys, "CACHED_SCOPES", 3)
    deriver = keys.ScopeDeriver(("team",), selector()._binder)
    known = deriver._known

    for number in range(10):
        assert deriver.derive({"team": str(number)}).text == f'{{"team":"{number}"}}'
        assert len(known) <= 3
    long = "x" * keys.CACHED_SCOPE_CHARACTERS
    assert deriver.derive({"team": long}).text == f'{{"team":"{long}"}}'
    assert (long,) not in known


@pytest.mark.parametrize(
    ("edits", "role"),
    [
        (
            [
                (
                    f"{CONSISTENCY}.acquire.requirements",
                    [{"kind": "linearizable", "key_by": ["call"]}],
                )
            ],
            "linearization",
        ),
        (
            [
                (
                    f"{CONSISTENCY}.sessions",
                    [{"key_by": ["call"], "guarantees": ["monotonic_reads"]}],
                )
            ],
            "session",
        ),
        (
            [(f"{CONSISTENCY}.commit.ordering", {"kind": "serialize", "key_by": ["call"]})],
            "ordering",
        ),
    ],
)
def test_missing_alias_of_a_key_is_refused_on_every_operation(
    edits: list[tuple[str, Any]], role: str, selector: Callable[..., Selector]
) -> None:
    error = refusal(lambda: selector(*edits).select("recipe", META))

    assert error.pointer == "meta/call_id"
    assert role in error.message


def test_missing_alias_of_snapshot_or_unit_is_refused(
    small: dict[str, Any], selector: Callable[..., Selector]
) -> None:
    batch = small["entity_types"]["recipe"]["rules"][0]["behavior"]
    selected = selector(("entity_types.recipe.rules", []), (FALLBACK, batch))

    assert refusal(lambda: selected.select("recipe", META)).pointer == "meta/call_id"
    assert (
        refusal(lambda: selected.select("recipe", {**META, "call_id": "c"})).pointer == "meta/unit"
    )


def test_control_keys(selector: Callable[..., Selector]) -> None:
    selected = selector(
        (f"{CONSISTENCY}.acquire.requirements", [{"kind": "linearizable", "key_by": ["unit"]}]),
        (
            f"{CONSISTENCY}.sessions",
            [
                {"key_by": ["session", "call"], "guarantees": ["read_your_writes"]},
                {"key_by": ["call"], "guarantees": ["monotonic_reads", "read_your_writes"]},
            ],
        ),
        (f"{CONSISTENCY}.commit.ordering", {"kind": "serialize", "key_by": []}),
        (f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["session", "call"]}),
        ("entity_types.recipe.rules", []),
    )
    meta = {**META, "unit": "u", "session": "s", "call_id": "c"}

    selection = selected.select("recipe", meta)

    assert selection.linearization_key == key('{"unit":"u"}')
    assert selection.ordering_key == ROOT_KEY
    assert selection.idempotency_key == key('{"call":"c","session":"s"}')
    assert selection.is_keyed
    assert selection.sessions == (
        SessionRequirement(
            key=key('{"call":"c","session":"s"}'),  # pyright: ignore[reportArgumentType] -- its text
            monotonic_reads=False,
            read_your_writes=True,
        ),
        SessionRequirement(
            key=key('{"call":"c"}'),  # pyright: ignore[reportArgumentType] -- its text
            monotonic_reads=True,
            read_your_writes=True,
        ),
    )


def test_what_comes_once_is_not_remembered_and_pushes_nothing_out(
    selector: Callable[..., Selector],
) -> None:
    selected = selector(
        (f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["session", "call"]}),
        ("entity_types.recipe.rules", []),
    )
    keyed = {**META, "session": "s", "call_id": "c"}
    plain = selected.select("recipe", META)

    assert selected.select("recipe", keyed) is not selected.select("recipe", keyed)
    for number in range(REMEMBERED):
        selected.select("recipe", {**keyed, "call_id": str(number)})
    assert selected.select("recipe", META) is plain


@pytest.mark.parametrize("meta", [{}, {"call_id": "c"}, {"session": "s"}])
def test_unbound_idempotency_alias_gives_no_key_and_no_error(
    meta: dict[str, Any], selector: Callable[..., Selector]
) -> None:
    idempotency = {"mode": "keyed", "key_by": ["session", "call"]}

    selection = selector((f"{FALLBACK}.idempotency", idempotency)).select(
        "recipe", {**META, **meta}
    )

    assert selection.idempotency_key is None
    assert selection.is_keyed


def test_linearizable_takes_the_authority_alone(selector: Callable[..., Selector]) -> None:
    both = (f"{CONSISTENCY}.acquire.allow_sources", ["replica", "authority"])
    linearizable = (
        f"{CONSISTENCY}.acquire.requirements",
        [{"kind": "linearizable", "key_by": []}],
    )

    assert selector(both).select("recipe", META).sources == {Source.AUTHORITY, Source.REPLICA}
    assert selector(both, linearizable).select("recipe", META).sources == {Source.AUTHORITY}


CAUSAL = (
    f"{CONSISTENCY}.acquire.requirements",
    [
        {"kind": "causal_after", "token": "token", "optional": True},
        {"kind": "causal_after", "token": "session"},
    ],
)


def test_causal_bounds_are_joined_each_once(selector: Callable[..., Selector]) -> None:
    selected = selector(CAUSAL)

    def tokens(meta: dict[str, str]) -> tuple[Any, ...]:
        return selected.select("recipe", {**META, **meta}).minimum_tokens

    assert tokens({"seen_token": "t1", "session": "t2"}) == ("t1", "t2")
    assert tokens({"session": "t2"}) == ("t2",)
    assert tokens({"seen_token": "t", "session": "t"}) == ("t",)
    assert selected.select("recipe", {**META, "session": "t"}).causal_aliases == (
        "token",
        "session",
    )


def test_required_causal_alias_is_refused_when_unbound(selector: Callable[..., Selector]) -> None:
    error = refusal(lambda: selector(CAUSAL).select("recipe", {**META, "seen_token": "t"}))

    assert error.pointer == "meta/session"
    assert "causal token" in error.message


def test_causal_bound_that_is_no_string_is_refused_when_the_read_is_planned(
    selector: Callable[..., Selector],
) -> None:
    selected = selector(
        ("meta_fields.token.schema", True),
        (f"{CONSISTENCY}.acquire.requirements", [{"kind": "causal_after", "token": "token"}]),
    )
    selection = selected.select("recipe", {**META, "seen_token": 7})

    assert selection.minimum_tokens == (7,)
    error = refusal(lambda: selection.consistency(deadline_unix_ms=None, is_mutation=False))
    assert error.pointer == "meta/seen_token"


@pytest.mark.parametrize("strategy", ["merge", "mvcc", "reject"])
def test_strategy_of_the_request_wins(strategy: str, selector: Callable[..., Selector]) -> None:
    selected = selector((f"{FALLBACK}.conflict.default_strategy", "reject"))

    assert selected.select("recipe", {**META, "on_clash": strategy}).strategy == strategy
    assert selected.select("recipe", META).strategy == "reject"


@pytest.mark.parametrize("strategy", ["MERGE", "", "newest", 1, None, [], ["merge"], {"merge": 1}])
def test_unknown_strategy_is_refused_whatever_its_schema_admits(
    strategy: Any, selector: Callable[..., Selector]
) -> None:
    selected = selector(("meta_fields.strategy.schema", True))

    error = refusal(lambda: selected.select("recipe", {**META, "on_clash": strategy}))

    assert error.pointer == "meta/on_clash"
    assert '"reject"' in error.message


@pytest.mark.parametrize("value", [["v1", "v2"], [], None, "v1", [1], {}])
def test_base_versions_are_carried_along_unparsed(
    value: Any, selector: Callable[..., Selector]
) -> None:
    selected = selector(("meta_fields.bases.schema", True))

    assert selected.select("recipe", {**META, "seen": value}).base_versions == value


def test_order_of_failures_inside_a_behavior(
    small: dict[str, Any], selector: Callable[..., Selector]
) -> None:
    """Snapshot, requirements in file order, sessions, ordering, strategy."""
    text = {"type": "string"}
    fields = {
        alias: {"pointer": f"/{alias}", "schema": text} for alias in ("a", "b", "c", "d", "e", "f")
    }
    selected = selector(
        ("meta_fields", {**small["meta_fields"], **fields}),
        ("meta_fields.strategy.schema", True),
        ("entity_types.recipe.rules", []),
        (
            f"{CONSISTENCY}.acquire.requirements",
            [
                {"kind": "causal_after", "token": "a"},
                {"kind": "linearizable", "key_by": ["b"]},
                {"kind": "causal_after", "token": "c"},
            ],
        ),
        (f"{CONSISTENCY}.sessions", [{"key_by": ["d"], "guarantees": ["monotonic_reads"]}]),
        (f"{CONSISTENCY}.commit.ordering", {"kind": "serialize", "key_by": ["e"]}),
    )
    meta: dict[str, Any] = {**META, "on_clash": "newest"}
    seen: list[str | None] = []
    for alias in ("a", "b", "c", "d", "e"):
        seen.append(refusal(lambda: selected.select("recipe", meta)).pointer)
        meta[alias] = alias
    seen.append(refusal(lambda: selected.select("recipe", meta)).pointer)

    assert seen == ["meta/a", "meta/b", "meta/c", "meta/d", "meta/e", "meta/on_clash"]


UNIT_META = {**META, "unit": "u", "call_id": "c"}


def test_unit_is_described(selector: Callable[..., Selector]) -> None:
    selection = selector().select("recipe", UNIT_META)

    unit = selection.unit
    assert unit is not None
    assert unit.identity == key('{"call":"c","unit":"u"}')
    assert unit.ttl_ms == 60000
    assert not unit.is_closing
    assert unit.at(selection.scope, now_unix_ms=1000) == WorkUnit(
        identity=unit.identity,
        scope=selection.scope.text,
        policy_json=unit.policy_text,
        now_unix_ms=1000,
        expires_at_unix_ms=61000,
    )


@pytest.mark.parametrize(
    ("equals", "state", "is_closing"),
    [
        ("done", "done", True),
        ("done", "Done", False),
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (None, None, True),
        ([1, {"a": None}], [1, {"a": None}], True),
        (0.0, -0.0, True),
    ],
)
def test_unit_closes_on_the_same_json(
    *, equals: Any, state: Any, is_closing: bool, selector: Callable[..., Selector]
) -> None:
    selected = selector(
        ("meta_fields.marker.schema", True), (f"{RULE}.publication.close_when.equals", equals)
    )

    closing = selected.select("recipe", {**UNIT_META, "state": state}).unit
    staying = selected.select("recipe", UNIT_META).unit

    assert closing is not None
    assert staying is not None
    assert closing.is_closing == is_closing
    assert not staying.is_closing


def test_unit_never_ends_beyond_64_bits(selector: Callable[..., Selector]) -> None:
    selection = selector((f"{RULE}.publication.staging_ttl_ms", 2**64 - 1)).select(
        "recipe", UNIT_META
    )

    assert selection.unit is not None
    assert selection.unit.at(selection.scope, now_unix_ms=5).expires_at_unix_ms == 2**63 - 1


def unit_policy(selection: Selection) -> tuple[str, str]:
    assert selection.unit is not None
    return selection.unit.identity, selection.unit.policy_text


def test_unit_is_shared_by_types_and_refused_to_other_policies(
    small: dict[str, Any], selector: Callable[..., Selector]
) -> None:
    recipe = small["entity_types"]["recipe"]
    selected = selector(("entity_types.menu", recipe))

    one = unit_policy(selected.select("recipe", UNIT_META))

    assert unit_policy(selected.select("menu", UNIT_META)) == one
    for path, value in (
        ("staging_ttl_ms", 60001),
        ("key_by", ["unit", "call"]),
        ("close_when.equals", "closed"),
        ("close_when.field", "session"),
    ):
        other = unit_policy(
            selector((f"{RULE}.publication.{path}", value)).select("recipe", UNIT_META)
        )
        assert other[0] == one[0]
        assert other[1] != one[1], path
    for path, value in (
        ("commit.ordering", {"kind": "serialize", "key_by": []}),
        ("acquire.requirements", [{"kind": "linearizable", "key_by": []}]),
    ):
        other = unit_policy(
            selector((f"{RULE}.consistency.{path}", value)).select("recipe", UNIT_META)
        )
        assert other[1] != one[1], path


def test_consistency_of_reads_and_mutations(selector: Callable[..., Selector]) -> None:
    selection = selector(
        (f"{CONSISTENCY}.acquire.allow_sources", ["replica", "authority"]),
        (f"{CONSISTENCY}.acquire.requirements", [{"kind": "causal_after", "token": "token"}]),
    ).select("recipe", {**META, "seen_token": "t"})

    read = selection.consistency(deadline_unix_ms=9, is_mutation=False)
    write = selection.consistency(deadline_unix_ms=None, is_mutation=True)

    assert read == Consistency(
        allowed_sources=frozenset({Source.AUTHORITY, Source.REPLICA}),
        minimum_tokens=("t",),  # pyright: ignore[reportArgumentType] -- a token
        deadline_unix_ms=9,
    )
    assert write.allowed_sources == {Source.AUTHORITY}
    assert write.deadline_unix_ms is None


def test_plan_of_eventual() -> None:
    selected = Selector(load_policy(read_resource("patterns/eventual.json")).policy)

    selection = selected.select("knowledge", {"workspace_id": "w", "user_id": "u"})

    assert selection.sources == {Source.AUTHORITY, Source.REPLICA}
    assert selection.minimum_tokens == ()
    assert selection.causal_aliases == ()
    assert selection.linearization_key is None
    assert selection.ordering_key is None


def test_plan_of_causal_session() -> None:
    selected = Selector(load_policy(read_resource("patterns/causal_session.json")).policy)
    meta = {"workspace_id": "w", "user_id": "u"}

    error = refusal(lambda: selected.select("knowledge", meta))
    selection = selected.select("knowledge", {**meta, "plugin_route_id": "p"})

    assert error.pointer == "meta/plugin_route_id"
    assert selection.minimum_tokens == ()
    assert [session.key for session in selection.sessions] == [
        '{"scope":{"user_id":"u","workspace_id":"w"},"fields":{"participant_id":"p"}}'
    ]
    assert selection.causal_aliases == ("causal_token",)


def test_plan_of_shared_transaction() -> None:
    selected = Selector(load_policy(read_resource("patterns/shared_transaction.json")).policy)
    meta = {"workspace_id": "w", "user_id": "u"}

    error = refusal(lambda: selected.select("knowledge", meta))
    selection = selected.select("knowledge", {**meta, "transaction_id": "t"})

    assert error.pointer == "meta/transaction_id"
    assert selection.unit is not None
    assert f'"snapshot":{selection.unit.identity}' in selection.unit.policy_text


def test_default_policy_has_one_ordered_domain_for_each_scope() -> None:
    selected = Selector(load_policy(read_resource("patchouli.default.json")).policy)
    meta = {"workspace_id": "w", "user_id": "u"}

    selections = [selected.select(name, meta) for name in sorted(selected.entity_types)]

    domain = '{"scope":{"user_id":"u","workspace_id":"w"},"fields":{}}'
    assert {selection.linearization_key for selection in selections} == {domain}
    assert {selection.ordering_key for selection in selections} == {domain}
    assert {selection.strategy for selection in selections} == {"merge", "mvcc"}
    assert {selection.unit for selection in selections} == {None}


def test_selection_from_many_threads_at_once() -> None:
    selected = Selector(load_policy(read_resource("patchouli.default.json")).policy)
    barrier = threading.Barrier(4)
    wrong: list[str] = []

    def run(user: str) -> None:
        barrier.wait()
        for number in range(300):
            meta: dict[str, Any] = {"workspace_id": str(number % 7), "user_id": user}
            text = selected.select("knowledge", meta).scope.text
            if text != f'{{"user_id":"{user}","workspace_id":"{number % 7}"}}':
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
