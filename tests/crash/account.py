"""The account of a run: what every peer asked for, and what it was told.

Each mutation has a number that travels in its metadata. The policy of `create_counted_home` binds
it, so the change that a mutation made names the mutation, and a value holds the number as a word
that occurs nowhere else. So it can be told of every mutation whether it was done, how often, in
which order, and whether its value is found.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from patchouli.server.testing import create_memo_home

if TYPE_CHECKING:
    from pathlib import Path

WORKSPACE: Final = "atlas"
USERS: Final = ("juno", "mira", "noor", "tavi")  # one scope each
TYPES: Final = ("memo", "slip")  # that all take any value

_LETTERS: Final = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_WORD: Final = re.compile("(?=(w[a-p]{12}q))")  # also one that begins within another


class Key(NamedTuple):
    """An entity on the wire; the user names its scope."""

    user: str
    type: str
    id: str


@dataclass(slots=True, eq=False)
class Attempt:
    """One mutation that was sent.

    Attributes:
        number: Its number, from 1 and by order of sending.
        peer: The connection that sent it.
        told_before: How many answers to mutations had come, on any connection, when it was sent.
        version: The version that the answer named, if it was a success.
        value: The value that the answer named.
        refusal: The code of the answer, if it was an error.
    """

    number: int
    peer: int
    method: str
    key: Key
    bases: tuple[str, ...]
    told_before: int
    version: str | None = None
    value: Any = None
    refusal: int | None = None

    @property
    def word(self) -> str:
        """The word that only the value of this mutation holds, and what is merged from it."""
        return word_of(self.number)

    @property
    def is_answered(self) -> bool:
        """Whether its answer came."""
        return self.version is not None or self.refusal is not None


@dataclass(slots=True, eq=False)
class Account:
    """What was sent and what was told, over several runs of one daemon.

    `seen` are versions that a read showed, `uploaded` the bytes of acknowledged artifacts.
    """

    attempts: list[Attempt] = field(default_factory=list[Attempt])
    peers: int = 0
    told: list[Attempt] = field(default_factory=list[Attempt])
    seen: set[tuple[Key, str]] = field(default_factory=set[tuple[Key, str]])
    uploaded: dict[Key, bytes] = field(default_factory=dict[Key, bytes])

    def new_peer(self) -> int:
        """Return the number of one more connection."""
        self.peers += 1
        return self.peers

    def attempt(self, peer: int, method: str, key: Key, bases: tuple[str, ...] = ()) -> Attempt:
        """Enter a mutation that is about to be sent."""
        number = len(self.attempts) + 1
        attempt = Attempt(number, peer, method, key, bases, told_before=len(self.told))
        self.attempts.append(attempt)
        return attempt

    def as_of(self, *, told: int, sent: int) -> Account:
        """Return the account as it was when so many answers had come and mutations been sent."""
        known = {attempt.number for attempt in self.told[:told]}
        attempts = [
            attempt
            if attempt.number in known
            else replace(attempt, version=None, value=None, refusal=None)
            for attempt in self.attempts[:sent]
        ]
        return Account(attempts=attempts, told=self.told[:told])

    def settle(self, attempt: Attempt, answer: dict[str, Any]) -> None:
        """Enter the answer to a mutation."""
        if "result" in answer:
            entity = answer["result"]["data"]["entity"]
            attempt.version = entity["version"]
            attempt.value = entity.get("value")
        else:
            attempt.refusal = answer["error"]["code"]
        self.told.append(attempt)

    def see(self, key: Key, answer: dict[str, Any]) -> None:
        """Enter the versions that a read showed."""
        if "result" in answer:
            variants = answer["result"]["data"]["variants"]
            self.seen.update((key, variant["version"]) for variant in variants)


def word_of(number: int) -> str:
    """Return a word that no other one contains, nor two of them whose characters were mixed.

    Texts are merged by characters, so words that differ in a digit or two would not do.
    """
    digest = sha256(str(number).encode()).hexdigest()[:12]
    return f"w{digest.translate(_LETTERS)}q"


def words_in(text: str) -> set[str]:
    """Return all that look like words of attempts."""
    return set(_WORD.findall(text))


def meta_of(user: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of a request in the scope of `user`."""
    return {"workspace_id": WORKSPACE, "user_id": user, **more}


def create_counted_home(root: Path) -> Path:
    """Make `root` a home whose events name the attempt that made them, and return it."""
    create_memo_home(root)
    policy = json.loads((root / "config.json").read_text(encoding="utf-8"))
    policy["meta_fields"]["attempt"] = {"pointer": "/attempt", "schema": {"type": "integer"}}
    policy["entity_types"]["slip"] = policy["entity_types"]["memo"]
    (root / "config.json").write_text(json.dumps(policy), encoding="utf-8")
    return root
