"""Spaced text: counting in it is counting in the text, and its trigrams miss no occurrence."""

from __future__ import annotations

from contextlib import closing

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.provider import fold
from patchouli.provider_sqlite.index_leaves import SEPARATOR
from patchouli.provider_sqlite.index_text import NUL, needle_of, space_out

# ruff: noqa: RUF001 - letters that look alike are the point
ALPHABETS = (
    "abkisKIAZ09 .-_",
    "ÉéßẞİıK",
    "ΣςσΩ",
    "数据茶かﾊ𠮷한",
    "🙂%*#~^|{}",
    "мирМИ",
    "ਪੰਜਾ",
    "\u0301\n\t",
)
characters = st.one_of(
    st.sampled_from("".join(ALPHABETS)),
    st.characters(exclude_categories=["Cs"], exclude_characters=SEPARATOR + NUL),
)
texts = st.text(characters, max_size=12)


@st.composite
def leaves_with_a_needle(draw: st.DrawFn) -> tuple[list[str], str]:
    leaves = draw(st.lists(texts, min_size=1, max_size=4))
    leaf = draw(st.sampled_from(leaves))
    start = draw(st.integers(0, max(0, len(leaf) - 1)))
    part = leaf[start : start + draw(st.integers(1, 5))]
    return leaves, draw(st.sampled_from([part, part.upper(), part.lower()])) or draw(
        st.text(characters, min_size=1, max_size=3)
    )


def stored(leaves: list[str]) -> str:
    return space_out(fold(SEPARATOR.join(leaves))) + SEPARATOR


@given(leaves_with_a_needle())
def test_counting_the_literal_is_counting_the_needle(drawn: tuple[list[str], str]) -> None:
    leaves, text = drawn
    needle = needle_of(text)

    counted = sum(fold(leaf).count(fold(text)) for leaf in leaves)

    assert stored(leaves).count(needle.literal) == counted
    assert needle.characters == len(fold(text))


@given(leaves_with_a_needle())
def test_the_trigrams_of_a_needle_are_in_every_text_that_holds_it(
    drawn: tuple[list[str], str],
) -> None:
    leaves, text = drawn
    needle = needle_of(text)
    if needle.match is None or not any(fold(text) in fold(leaf) for leaf in leaves):
        return
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE t USING fts5(x, detail=none, tokenize='trigram case_sensitive 1')"
        )
        connection.execute("INSERT INTO t VALUES (?)", (stored(leaves),))

        assert (
            connection.execute("SELECT count(*) FROM t WHERE t MATCH ?", (needle.match,)).get == 1
        )


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        ("plain text, 12:30", "plain text, 12:30"),
        ("数据", "\x1f数\x1f据\x1f"),
        ("x数y", "x\x1f数\x1fy"),
        ("a#b", "a\x1f#\x1fb"),
        ("##", "\x1f#\x1f#\x1f"),
        ("café au", "caf\x1fé\x1f au"),
        ("мир", "\x1fмир\x1f"),
        ("миr数", "\x1fми\x1fr\x1f数\x1f"),
        ("σа", "\x1fσ\x1fа\x1f"),
    ],
)
def test_what_stands_alone(text: str, spaced: str) -> None:
    assert space_out(text) == spaced


@pytest.mark.parametrize("text", ["茶", "茶馆", "#", "数据库", "ab", "中a", "мы", "a中b", "€"])
def test_short_needles_have_an_answer(text: str) -> None:
    assert needle_of(text).questions


@pytest.mark.parametrize("text", ["a", "Z", "7", "é", "я"])
def test_a_single_letter_of_an_alphabet_has_none(text: str) -> None:
    assert not needle_of(text).questions


def test_two_letters_ask_for_a_bounded_number_of_trigrams() -> None:
    for text in ("ab", "7.", "мы", "ωψ"):
        match = needle_of(text).match
        assert match is not None
        assert match.count(" OR ") <= 129


@pytest.mark.parametrize("text", ["a\x00b", "\x1f", "数\x1f据"])
def test_a_needle_with_a_separator_is_in_no_indexed_text(text: str) -> None:
    assert not needle_of(text).is_indexable
