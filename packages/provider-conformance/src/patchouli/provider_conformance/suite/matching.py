"""What a text and a filter match: every operator against every kind of value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import Json, Operator, holds, text_score
from patchouli.provider_conformance.asking import all_committed, committed, found, page_of
from patchouli.provider_conformance.builders import create, entity, retrieve, update, where
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider
    from patchouli.provider_conformance.suite.base import Start

TEXTS: dict[str, Json] = {
    "ascii": {"text": "The Red Apple", "n": 12345},
    "quotes": {"text": 'He said "NEAR" and left'},
    "percent": {"text": "100% of it"},
    "underscore": {"text": "snake_case"},
    "star": {"text": "a * b"},
    "backslash": {"text": "C:\\temp\\new"},
    "apostrophe": {"text": "it's"},
    "nul": {"text": "be\0fore"},
    "newline": {"text": "one\ntwo"},
    "emoji": {"text": "party 🎉🎉 time"},
    "accents": {"text": "École Élan"},
    "sharp s": {"text": "Straße STRAẞE"},
    "turkish": {"text": "İstanbul ısparta"},  # noqa: RUF001 - the letters are the point
    "greek": {"text": "ΟΔΟΣ οδός"},
    "cyrillic": {"text": "Дом у моря"},  # noqa: RUF001 - the letters are the point
    "japanese": {"text": "東京都に行く"},
    "chinese": {"text": "我喜欢苹果"},
    "names": {"Colour": {"Shade": "dark"}},
    "scalars": {"flag": True, "nothing": None, "pi": 3.14159, "list": [42, "x"]},
    "and": {"text": "cats AND dogs OR birds NOT fish"},
    "bare": "just a text",
    "long": {"text": "lorem ipsum " * 400 + "needle in it"},
}
NEEDLES = [
    *["red apple", "RED APPLE", "d a", "e", "ed", "appl", "apples", "red  apple", "12345", "234"],
    *['"near"', "NEAR", "near and", '"', "100%", "%", "0%", "_", "e_c", "snake_case", "snakexcase"],
    *["*", "a * b", "a *", "\\", "\\t", "c:\\temp", "\\\\", "'", "it's", "''", "be\0fore", "\0"],
    *["e\nt", "\n", "\\n", "🎉", "🎉🎉", "🎉🎉🎉", "y 🎉", "école", "ÉCOLE", "ecole", "é", "É"],
    *["strasse", "straße", "STRAẞE", "ß", "ẞ", "ss", "istanbul", "İSTANBUL", "i̇stanbul", "İ"],
    *["ısparta", "ISPARTA", "ı", "οδοσ", "οδος", "ΟΔΟΣ", "σ", "ς", "Σ", "οδός", "δός"],  # noqa: RUF001 - the letters are the point
    *["ДоМ ", "МОРЯ", "東京", "京都", "都", "東京都に", "行く東", "苹果", "欢苹", "我", "我喜欢"],
    *["colour", "SHADE", "shade", "colour.shade", "true", "null", "3.14", "42", "3.141590", "tru"],
    *["and", "AND dogs", "cats AND", "OR", "NOT fish", "not", "a text", "needle in", "ipsum lorem"],
    *["{", "}", '":"', ",", "text", "tex", "te", "xt", "(", ")", "^", "-", "+", ":", "a*", "appl*"],
]

VALUES: list[Json] = [
    *["", "a", "b", "abc", "B", "é", "\uffff", "\U00010000", "1", "true", "null"],
    *[0, -0.0, 1, 1.0, 2, -1, 1.5, 1e300, 2**53, 2**53 + 1, float(2**53), 2**63 - 1],
    *[2**64 - 1, -(2**63)],
    *[True, False, None],
    *[[], [1], [1.0, 2], [2, 1], [[1]], ["a"], ["abc", None], [True], [{"a": 1}], [[], {}]],
    *[{}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": [1]}, {"b": 1, "a": 1}],
]


class TextConformance(ProviderSuite):
    """A text is a literal: found where it stands in a leaf, whatever characters it has."""

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """A provider with texts of many kinds."""
        provider = await start()
        await all_committed(
            provider, (create(entity(name), f"v-{name}", value) for name, value in TEXTS.items())
        )
        return provider

    async def test_each_needle_finds_the_values_that_hold_it_with_their_scores(
        self, provider: Provider
    ) -> None:
        for needle in NEEDLES:
            expected = {
                name: pytest.approx(score)
                for name, value in TEXTS.items()
                if (score := text_score(value, needle)) is not None
            }

            hits = (await page_of(provider, retrieve(text=needle))).hits

            assert {hit.key.id: hit.score for hit in hits} == expected, repr(needle)

    @pytest.mark.parametrize(
        ("needle", "expected"),
        [
            ("rEd aPP", ["ascii"]),
            ("é", ["accents"]),
            ("京都", ["japanese"]),
            ("οδος", ["greek"]),
            ("straße", ["sharp s"]),
            ("strasse", []),
            ('"NEAR"', ["quotes"]),
            ("%", ["percent"]),
            ("be\0", ["nul"]),
            ("\\temp", ["backslash"]),
            ("shade", ["names"]),
            ("3.14159", ["scalars"]),
            ("colour shade", []),
            ("apple*", []),
        ],
    )
    async def test_what_is_found(
        self, provider: Provider, needle: str, expected: list[str]
    ) -> None:
        assert await found(provider, text=needle) == expected

    async def test_a_superseded_text_is_not_found(self, provider: Provider) -> None:
        await committed(provider, update(entity("ascii"), "v-ascii", "v2", {"text": "green"}))

        assert await found(provider, text="red apple") == []
        assert await found(provider, text="gr") == ["ascii"]


class FilterConformance(ProviderSuite):
    """A condition holds by the type and the value, or not at all."""

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """A provider with one entity for each value, and one without the member."""
        provider = await start()
        names = [f"{number:03d}" for number in range(len(VALUES))]
        await all_committed(
            provider,
            (
                create(entity(name), f"v{name}", {"v": value})
                for name, value in zip(names, VALUES, strict=True)
            ),
        )
        await committed(provider, create(entity("none"), "v-none", {"other": 1}))
        await committed(provider, create(entity("text"), "v-text", "v"))
        return provider

    @pytest.mark.parametrize("operator", Operator)
    async def test_each_operator_against_each_pair_of_values(
        self, provider: Provider, operator: Operator
    ) -> None:
        for operand in VALUES:
            condition = where("/v", operator, operand)
            expected = [
                f"{number:03d}"
                for number, value in enumerate(VALUES)
                if holds(condition, {"v": json.loads(json.dumps(value))})
            ]

            assert await found(provider, filters=(condition,)) == expected, repr(operand)

    @pytest.mark.parametrize(
        ("operator", "operand", "expected"),
        [
            (Operator.EQUAL, 1, [1, 1.0]),
            (Operator.EQUAL, True, [True]),
            (Operator.EQUAL, "abc", ["abc"]),
            (Operator.EQUAL, {"a": 1}, [{"a": 1}, {"a": 1.0}]),
            (Operator.CONTAINS, 1.0, [[1], [1.0, 2], [2, 1]]),
            (Operator.CONTAINS, "b", ["b", "abc"]),
            (Operator.GREATER, 2**53, [1e300, 2**53 + 1, 2**63 - 1, 2**64 - 1]),
            (Operator.GREATER, "\uffff", ["\U00010000"]),
            (Operator.LESS, True, []),
            (Operator.LESS_OR_EQUAL, -1, [-1, -(2**63)]),
        ],
    )
    async def test_what_holds(
        self, provider: Provider, operator: Operator, operand: Json, expected: list[Json]
    ) -> None:
        hits = (await page_of(provider, retrieve(filters=(where("/v", operator, operand),)))).hits

        values = [json.loads(hit.heads[0].value_json or "")["v"] for hit in hits]
        assert [repr(value) for value in values] == [repr(value) for value in expected]

    async def test_not_equal_is_false_of_a_missing_member(self, provider: Provider) -> None:
        names = await found(provider, filters=(where("/v", Operator.NOT_EQUAL, "nothing"),))

        assert names == [f"{number:03d}" for number in range(len(VALUES))]


POINTERS: dict[str, Json] = {
    "/a": {"a": 1},
    "/a/b": {"a": {"b": 1}},
    "/a/0": {"a": [1, 2]},
    "/a/1": {"a": [2, 1]},
    "/a/01": {"a": {"01": 1}},
    "/a/-": {"a": {"-": 1}},
    "/": {"": 1},
    "//": {"": {"": 1}},
    "/a~1b": {"a/b": 1},
    "/a~0b": {"a~b": 1},
    "/~01": {"~1": 1},
    '/a"b': {'a"b': 1},
    "/a.b": {"a.b": 1},
    "/$": {"$": 1},
    "/a[0]": {"a[0]": 1},
    "/é 😀": {"é 😀": 1},
    "/a\0b": {"a\0b": 1},
    "/\N{ARABIC-INDIC DIGIT ONE}": [2, 1],
    "/0": [1],
    "/1": [0, 1],
    "/99999999999999999999": {"99999999999999999999": 1},
}


class PointerConformance(ProviderSuite):
    """A JSON Pointer names one place in a value, however strange the names are."""

    async def test_each_pointer_finds_its_own_value(self, provider: Provider) -> None:
        for number, value in enumerate(POINTERS.values()):
            await committed(provider, create(entity(f"{number:03d}"), f"v{number}", value))

        for pointer in POINTERS:
            condition = where(pointer, Operator.EQUAL, 1)
            expected = [
                f"{number:03d}"
                for number, value in enumerate(POINTERS.values())
                if holds(condition, value)
            ]
            assert await found(provider, filters=(condition,)) == expected, pointer

    async def test_a_pointer_into_a_bare_value_names_nothing(self, provider: Provider) -> None:
        await committed(provider, create(entity("a"), "v1", "text"))
        await committed(provider, create(entity("b"), "v2", ["x"]))

        assert await found(provider, filters=(where("/0", Operator.NOT_EQUAL, 1),)) == ["b"]
        assert await found(provider, filters=(where("/0/x", Operator.NOT_EQUAL, 1),)) == []
