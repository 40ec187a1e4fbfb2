r"""What the index takes out of a JSON value: its leaves, where they stand, and tokens for equality.

SQLite's `json_tree` walks the values of a batch without the interpreter and returns two lists for
each (`EXTRACT`): the paths of all nodes, and what stands there, leaves spelled as by
`patchouli.provider.leaves`. The list of paths is the *shape* of a value. Values of one origin have
few shapes, and everything that follows from a shape is worked out once: its member names, which of
its nodes are leaves, and the number of the place of each leaf.

Some values are walked in Python instead, with the same result: those with a `\u` escape (a member
name may be spelled with one, and only they can hold our separators), and those with a number that
SQLite and Python spell differently.

A *place* is a path with names and indices told apart, e.g. `."tags"[]` for the elements of an array
and `."rows"[3]."id"` below one. A *token* is the number of a place and the leaf that stands there,
`17=mira`; long leaves are cut. What a token finds is verified on the value, so a token need not be
unique: strings and other scalars are not told apart.
"""

from __future__ import annotations

import contextlib
import json
import re
from itertools import compress, product
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from patchouli.provider import Json

# None of these four can be in JSON text itself, and in a value only by a `\\u` escape.
SEPARATOR: Final = "\x1f"
PART: Final = "\x1d"
CONTAINER: Final = "\x1c"  # stands for an object or an array; only an empty one is a leaf

AMBIGUOUS_STEPS: Final = 3  # steps of a pointer that may be names or indices; more are not asked
LEAVES_ASKED: Final = 24  # of an operand with many; the rest is left to the verification
WHOLE_VALUE: Final = 2048  # characters; the leaves of a shorter value are not cut
WHOLE_LEAF: Final = 48  # characters; of a longer leaf a token holds both ends and the length

_SPELLING: Final = "printf('%!.15g', atom)"
# Fifteen digits without an exponent are what Python prints, too, if they are enough. Other numbers
# become PART, which marks the whole row as one to be walked in Python.
_LEAF: Final = f"""CASE type
    WHEN 'text' THEN atom
    WHEN 'object' THEN char(28)
    WHEN 'array' THEN char(28)
    WHEN 'null' THEN 'null'
    WHEN 'integer' THEN CASE typeof(atom) WHEN 'integer' THEN atom ELSE char(29) END
    WHEN 'true' THEN 'true'
    WHEN 'false' THEN 'false'
    ELSE CASE
        WHEN abs(atom) >= 0.0001 AND abs(atom) < 1e15 AND CAST({_SPELLING} AS REAL) = atom
        THEN {_SPELLING}
        WHEN atom = 0 AND (body -> fullkey) = '0.0' THEN '0.0'
        ELSE char(29) END
    END"""
EXTRACT: Final = f"""
CASE WHEN instr(body, '\\u') THEN '' ELSE (
    SELECT group_concat(fullkey, char(31)) || char(29) || group_concat({_LEAF}, char(31))
    FROM json_tree(body)
) END
"""  # noqa: S608 - of constants
"""Of a column `body`: the paths of its nodes and what stands there; or nothing, or more parts."""

_STEP: Final = re.compile(r'\.([A-Za-z0-9]+)|\."((?:[^"\\]|\\.)*)"|\[([0-9]+)\]')
_INDEX: Final = re.compile(r"(?:0|[1-9][0-9]*)\Z")


class Shape(NamedTuple):
    """What all values with the same nodes have in common.

    `names_and_container` are its member names and the sign for a container, none of which is a leaf
    of its own. `is_leaf` says it of each node; `prefixes` begin the tokens of the leaves.
    """

    names_and_container: frozenset[str]
    is_leaf: tuple[bool, ...]
    prefixes: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The member names alone."""
        return self.names_and_container - {CONTAINER}


class Node(NamedTuple):
    """A node of a value that was walked in Python."""

    place: str
    name: str | None
    leaf: str
    is_container: bool = False
    is_inner: bool = False


def shape_of(paths: str, prefix_of: Callable[[str], str]) -> Shape:
    """Return the shape with these paths, as `EXTRACT` spells and orders them."""
    names: set[str] = set()
    places: list[str] = []
    split = paths.split(SEPARATOR)
    for path in split:
        place = ""
        for plain, quoted, index in _STEP.findall(path, 1):
            if index:
                place += f"[{index}]"
            else:
                name: str = plain or json.loads(f'"{quoted}"')
                names.add(name)
                place += _name_step(name)
        places.append(place)
    # A node is inner if the next one stands below it: the walk goes down first.
    following = [*split[1:], "$"]
    is_leaf = tuple(
        not (after.startswith(path) and after[len(path) : len(path) + 1] in {".", "["})
        for path, after in zip(split, following, strict=True)
    )
    leaf_places = compress(places, is_leaf)
    return Shape(
        frozenset(names | {CONTAINER}),
        is_leaf,
        tuple(prefix_of(as_element(place)) for place in leaf_places),
    )


def walk(value: Json) -> list[Node]:
    """Return the nodes of a value, parents before their children."""
    nodes: list[Node] = []
    pending: list[tuple[str, str | None, Json]] = [("", None, value)]
    while pending:
        place, name, node = pending.pop()
        if isinstance(node, dict):
            nodes.append(Node(place, name, CONTAINER, is_container=True, is_inner=bool(node)))
            pending.extend((place + _name_step(key), key, node[key]) for key in node)
        elif isinstance(node, list):
            nodes.append(Node(place, name, CONTAINER, is_container=True, is_inner=bool(node)))
            pending.extend((f"{place}[{i}]", None, element) for i, element in enumerate(node))
        else:
            leaf = node if isinstance(node, str) else json.dumps(node)
            nodes.append(Node(place, name, leaf))
    return nodes


def shape_of_nodes(nodes: Iterable[Node], prefix_of: Callable[[str], str]) -> Shape:
    """Return the shape of walked nodes."""
    listed = list(nodes)
    return Shape(
        frozenset({CONTAINER, *(node.name for node in listed if node.name is not None)}),
        tuple(not node.is_inner for node in listed),
        tuple(prefix_of(as_element(node.place)) for node in listed if not node.is_inner),
    )


def tokens_of(prefixes: Iterable[str], leaves: Iterable[str], *, may_be_long: bool = True) -> str:
    """Return the tokens of some leaves, given the prefixes of their places.

    Leaves are not looked at one by one if none of them can be worth cutting.
    """
    if may_be_long:
        leaves = [leaf if len(leaf) <= WHOLE_LEAF else _cut(leaf) for leaf in leaves]
    return SEPARATOR.join(map(add, prefixes, leaves))


def as_element(place: str) -> str:
    """Return where the elements of an array stand if `place` is one of them, else `place`."""
    return place[: place.rindex("[")] + "[]" if place.endswith("]") else place


def places_of(pointer: str) -> list[str]:
    """Return every place that `pointer` may mean; none if there are too many."""
    steps: list[tuple[str, ...]] = []
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        named = _name_step(name)
        steps.append((named, f"[{name}]") if _INDEX.match(name) else (named,))
    if sum(len(step) > 1 for step in steps) > AMBIGUOUS_STEPS:
        return []
    return ["".join(choice) for choice in product(*steps)]


def leaves_asked(operand: Json) -> Iterator[tuple[str, list[str]]]:
    """Return places below an operand, each with the leaves that equality allows there.

    Numbers that are equal may be spelled as integers or with a fraction, long leaves may be cut.
    """
    for node in [node for node in walk(operand) if not node.is_inner][:LEAVES_ASKED]:
        yield node.place, _spellings(node.leaf)


def _spellings(leaf: str) -> list[str]:
    spellings = {leaf}
    number = _number_or_none(leaf)
    if number is not None:
        if isinstance(number, int) or number.is_integer():
            spellings.add(str(int(number)))
        with contextlib.suppress(OverflowError):
            spellings.add(json.dumps(float(number)))
        if number == 0:
            spellings.update(("0.0", "-0.0"))
    spellings.update([_cut(spelling) for spelling in spellings if len(spelling) > WHOLE_LEAF])
    return sorted(spellings)


def _number_or_none(leaf: str) -> int | float | None:
    try:
        number: Json = json.loads(leaf)
    except ValueError:
        return None
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def _name_step(name: str) -> str:
    return f".{json.dumps(name, ensure_ascii=False)}"


def _cut(leaf: str) -> str:
    return f"{leaf[:32]}{CONTAINER}{leaf[-12:]}{CONTAINER}{len(leaf)}"
