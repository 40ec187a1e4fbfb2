"""Shapes that come again, and the leaves that all values of a shape seem to have.

Values of one origin share more than their member names: the name of their schema, the kind of their
source, a status that hardly changes. Such leaves make up half of a value and tell nothing apart. A
pattern learns from the first values of its shape at which nodes nothing changes. Values that are
the same there leave those leaves to the set that they share (`index_terms.py`), so their own text
is half as long, and the tokens of those leaves are put together once. Other values are laid out in
full, and when they become many the pattern learns anew. What was learnt changes costs and never an
answer.
"""

from __future__ import annotations

from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider_sqlite.index_leaves import SEPARATOR, tokens_of
from patchouli.provider_sqlite.index_numbers import number_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.provider_sqlite.index_leaves import Shape

LEARNT_FROM: Final = 48  # values
WORTH_SHARING: Final = 24  # characters; fewer are not worth a set of their own
MISSES: Final = 1000  # values that differ; then the pattern learns anew


class Usual(NamedTuple):
    """What is the same in most values of a shape, and how to take the rest out of the nodes."""

    constant_at: Callable[[Sequence[str]], tuple[str, ...]]
    constants: tuple[str, ...]
    variable_at: Callable[[Sequence[str]], tuple[str, ...]]
    prefixes: tuple[str, ...]
    tokens: str
    shared: frozenset[str]
    not_own: frozenset[str]


class Pattern:
    """A shape with what is known of its values."""

    __slots__ = ("_first", "_misses", "_same", "_to_learn_from", "names", "shape", "usual")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.names = shape.names
        self.usual: Usual | None = None
        self._learn_anew()

    def learn(self, nodes: Sequence[str]) -> None:
        """Take note of a value that is not the usual one, by what stands at its nodes."""
        if self._to_learn_from == 0:
            self._misses += 1
            if self._misses >= MISSES:
                self._learn_anew()
            return
        if self._to_learn_from == LEARNT_FROM:
            self._first = tuple(nodes)
            self._same = list(compress(range(len(nodes)), self.shape.is_leaf))
        else:
            self._same = [at for at in self._same if nodes[at] == self._first[at]]
        self._to_learn_from -= 1
        if self._to_learn_from == 0:
            self.usual = self._learnt()

    def _learn_anew(self) -> None:
        self._first: tuple[str, ...] = ()
        self._same: list[int] = []
        self._to_learn_from = LEARNT_FROM
        self._misses = 0

    def _learnt(self) -> Usual | None:
        """Return what is usual; None if it is not worth it."""
        shape = self.shape
        common = {self._first[at] for at in self._same} - shape.names_and_container
        leaf_nodes = list(compress(range(len(shape.is_leaf)), shape.is_leaf))
        prefixes = dict(zip(leaf_nodes, shape.prefixes, strict=True))
        variable = [at for at in leaf_nodes if at not in set(self._same)]
        if sum(map(len, common)) < WORTH_SHARING or len(self._same) < 2 or len(variable) < 2:
            return None
        constants = [self._first[at] for at in self._same]
        constant_prefixes = [prefixes[at] for at in self._same]
        return Usual(
            constant_at=itemgetter(*self._same),
            constants=tuple(constants),
            variable_at=itemgetter(*variable),
            prefixes=tuple(prefixes[at] for at in variable),
            tokens=tokens_of(constant_prefixes, constants)
            + number_tokens(constant_prefixes, constants)
            + SEPARATOR,
            shared=self.names | common,
            not_own=shape.names_and_container | common,
        )
