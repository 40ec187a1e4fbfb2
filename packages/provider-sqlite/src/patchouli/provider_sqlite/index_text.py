r"""How text is laid out for the trigram index, and how a needle is asked of it.

The index holds *spaced* text. Characters of scripts with small alphabets stay together, so that
three neighbours make a trigram. All other characters (ideographs, kana, Hangul, symbols, emoji, and
ASCII punctuation that is rare in prose) stand alone between two separators: of `数据` the trigrams
are `␟数␟`, `数␟据` and `␟据␟`, the characters and the pairs of neighbours themselves. A separator
also stands where two alphabets meet, and between leaves.

Spacing looks at two neighbours only. Therefore the spaced form of a needle occurs in the spaced
form of a text exactly as often as the needle occurs in the text, and no match crosses two leaves:

* a needle of three or more spaced characters is the AND of its trigrams;
* a needle of two letters of one alphabet is followed by a letter of that alphabet or a separator,
  so it is the OR of at most 129 trigrams;
* a single letter has no trigram of its own. It is in nearly every text, so its texts are looked
  through in the order of the results.

Trigrams find candidates; `literal` counted in the stored text decides. Text that holds a separator
or U+0000 itself cannot be laid out and is not indexed (`index_batch.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from patchouli.provider import fold
from patchouli.provider_sqlite.index_leaves import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Collection

NUL: Final = "\x00"
TRIGRAMS_ASKED: Final = 12  # of a long needle; the rest is left to the count of the literal

_JOINED_ASCII: Final = "abcdefghijklmnopqrstuvwxyz0123456789 \n.,-_:/@'\"()=&?+*;"
_JOINED_BYTES: Final = (_JOINED_ASCII + SEPARATOR).encode()
_ALONE_ASCII: Final = "".join(
    chr(code) for code in range(1, 128) if chr(code) not in _JOINED_ASCII + SEPARATOR
)
_APART: Final = re.compile(f"[{re.escape(_ALONE_ASCII)}\x80-\U0010ffff]+")
_FIRST_ALONE: Final = "\u2000"  # punctuation, symbols, then the ideographic scripts and beyond
_PAGE_BITS: Final = 7  # an alphabet below U+2000 is a page of 128 code points


@dataclass(frozen=True, slots=True)
class Needle:
    """A needle as the index is asked for it.

    `literal` is what to count in a stored text, `characters` the length of the needle itself, which
    is what one occurrence covers. `questions` are what the trigram index says yes to for every text
    with the needle; none if it has no answer. A needle that is not `is_indexable` occurs in no
    indexed text.
    """

    literal: str
    characters: int
    questions: tuple[str, ...]
    is_indexable: bool

    @property
    def match(self) -> str | None:
        """All questions at once, None if there are none."""
        return " AND ".join(self.questions) or None


def space_out(folded: str) -> str:
    """Return the spaced form of one folded leaf, or of several with separators between them."""
    if folded.isascii() and _is_joined(folded):
        return folded
    return _APART.sub(_space_run, folded)


def lay_out(leaves: Collection[str]) -> tuple[str, int]:
    """Return the spaced text of some leaves as typed, and the length of all of them, folded."""
    joined = SEPARATOR.join(leaves)
    if joined.isascii():
        folded = joined.lower()
        return space_out(folded) + SEPARATOR, len(folded) - max(0, len(leaves) - 1)
    # Most leaves are ASCII even here, and for them all this is quick.
    plain = SEPARATOR.join([leaf for leaf in leaves if leaf.isascii()]).lower()
    other = fold(SEPARATOR.join([leaf for leaf in leaves if not leaf.isascii()]))
    folded_length = len(plain) + len(other) - plain.count(SEPARATOR) - other.count(SEPARATOR)
    return f"{space_out(plain)}{SEPARATOR}{space_out(other)}{SEPARATOR}", folded_length


def needle_of(text: str) -> Needle:
    """Return how the index is asked for the needle `text`, which need not be folded."""
    folded = fold(text)
    if SEPARATOR in folded or NUL in folded:
        return Needle(literal=folded, characters=len(folded), questions=(), is_indexable=False)
    spaced = space_out(folded)
    # Beside a letter at the edge of the needle the text may go on in the same alphabet.
    known = spaced
    if not _is_alone(folded[0]):
        known = known.removeprefix(SEPARATOR)
    if not _is_alone(folded[-1]):
        known = known.removesuffix(SEPARATOR)
    return Needle(
        literal=spaced.strip(SEPARATOR),
        characters=len(folded),
        questions=_questions_of(known),
        is_indexable=True,
    )


def _questions_of(known: str) -> tuple[str, ...]:
    if len(known) >= 3:
        trigrams = dict.fromkeys(known[i : i + 3] for i in range(len(known) - 2))
        # Pairs of neighbours exclude more than a character alone between two separators.
        telling = [t for t in trigrams if t[0] != SEPARATOR or t[2] != SEPARATOR]
        return tuple(map(_quote, _spread(telling or list(trigrams))))
    if len(known) == 2:
        return ("(" + " OR ".join(_quote(known + last) for last in _followers(known[1])) + ")",)
    return ()


def _spread(trigrams: list[str]) -> list[str]:
    if len(trigrams) <= TRIGRAMS_ASKED:
        return trigrams
    last = len(trigrams) - 1
    return [trigrams[last * i // (TRIGRAMS_ASKED - 1)] for i in range(TRIGRAMS_ASKED)]


def _quote(trigram: str) -> str:
    return '"' + trigram.replace('"', '""') + '"'


@lru_cache(maxsize=256)
def _followers(letter: str) -> tuple[str, ...]:
    """Return what can stand after `letter` in spaced folded text."""
    if letter.isascii():
        return (SEPARATOR, *_JOINED_ASCII)
    page = ord(letter) >> _PAGE_BITS << _PAGE_BITS
    letters = map(chr, range(page, page + (1 << _PAGE_BITS)))
    return (SEPARATOR, *(other for other in letters if fold(other) == other))


def _is_joined(ascii_text: str) -> bool:
    return not ascii_text.encode().translate(None, _JOINED_BYTES)


def _is_alone(character: str) -> bool:
    return character >= _FIRST_ALONE or character in _ALONE_ASCII


def _space_run(match: re.Match[str]) -> str:
    run = match[0]
    if min(run) >= _FIRST_ALONE:
        return SEPARATOR + SEPARATOR.join(run) + SEPARATOR
    pieces = [SEPARATOR, run[0]]
    for left, right in pairwise(run):
        if not _are_joined(left, right):
            pieces.append(SEPARATOR)
        pieces.append(right)
    pieces.append(SEPARATOR)
    return "".join(pieces)


def _are_joined(left: str, right: str) -> bool:
    return (
        "\x80" <= left < _FIRST_ALONE
        and "\x80" <= right < _FIRST_ALONE
        and ord(left) >> _PAGE_BITS == ord(right) >> _PAGE_BITS
    )
