"""Whether what a daemon shows, and what its store holds, agrees with what was told."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from patchouli.protocol import (
    CHANGE_EVENT,
    CREATE,
    READ,
    RETRIEVE,
    STATUS,
    SUBSCRIBE,
)
from patchouli.provider_sqlite.testing import check_index, check_truth, read_contents
from patchouli.server.testing import Peer

from tests.crash.account import (
    TYPES,
    USERS,
    WORKSPACE,
    Attempt,
    Key,
    meta_of,
    words_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from patchouli.provider import EntityKey
    from patchouli.provider_sqlite.testing import Contents

    from tests.crash.account import Account

Heads = dict[Key, list[dict[str, Any]]]
"""The versions that a read shows, by entity."""

_WINDOW: Final = 32  # requests under way, as many as a connection may have


@dataclass(frozen=True, slots=True)
class Told:
    """One change as an event tells it."""

    cursor: str
    attempt: int
    key: Key
    kind: str
    heads: tuple[str, ...]

    @property
    def position(self) -> int:
        """The number inside the cursor."""
        return int(self.cursor.rpartition(".")[2])


@dataclass(slots=True, eq=False)
class Follower:
    """A subscriber of one scope that goes on from where it was cut off."""

    user: str
    changes: list[Told] = field(default_factory=list[Told])

    @property
    def position(self) -> str:
        """The cursor of the last change that arrived."""
        return self.changes[-1].cursor if self.changes else "0"

    async def follow(self, endpoint: Path) -> None:
        """Take changes until the connection ends."""
        try:
            async with await Peer.connect(endpoint, capabilities=["subscriptions"]) as peer:
                await peer.result(
                    SUBSCRIBE, {"meta": meta_of(self.user), "data": {"after_cursor": self.position}}
                )
                while True:
                    self.changes.append(_told(self.user, await peer.notification()))
        except (EOFError, ConnectionError):
            return


async def read_log(endpoint: Path, user: str, *, after: str, until: int) -> list[Told]:
    """Return the changes of a scope after a cursor up to the one that attempt `until` made."""
    found: list[Told] = []
    async with await Peer.connect(endpoint, capabilities=["subscriptions"]) as peer:
        await peer.result(SUBSCRIBE, {"meta": meta_of(user), "data": {"after_cursor": after}})
        while not found or found[-1].attempt != until:
            found.append(_told(user, await peer.notification()))
    return found


def check_log(account: Account, log: Sequence[Told]) -> None:
    """Return if the change log of all scopes together, in order, is what the account allows.

    Raises:
        AssertionError: Something acknowledged is missing, something is there twice, something
            refused was done, or the order is not the one that peers could see.
    """
    positions = [told.position for told in log]
    assert positions == sorted(set(positions)), "cursors ascend and none is given twice"
    counts = Counter(told.attempt for told in log)
    twice = [number for number, count in counts.items() if count > 1]
    assert not twice, f"attempts {twice[:5]} were done twice"
    changes = {told.attempt: told for told in log}
    for attempt in account.attempts:
        told = changes.pop(attempt.number, None)
        if attempt.version is not None:
            assert told is not None, f"{attempt} was acknowledged and is missing"
            assert attempt.version in told.heads, f"{told} does not have the version of {attempt}"
        if attempt.refusal is not None:
            assert told is None, f"{attempt} was refused and was done"
        if told is not None:
            assert told.key == attempt.key, f"{told} and {attempt} are about different entities"
    assert not changes, f"nobody asked for {list(changes.values())[:5]}"
    _check_order(account, log)


def check_heads(log: Iterable[Told], heads: Heads) -> None:
    """Return if each entity has the heads that its newest change names."""
    newest = {told.key: told for told in log}
    assert newest.keys() == heads.keys(), "an entity is there if and only if it was changed"
    for key, told in newest.items():
        found = [variant["version"] for variant in heads[key]]
        assert found == sorted(told.heads), f"{key} has the heads {found}, its change {told}"


def check_database(database: Path, account: Account) -> Contents:
    """Return what a database at rest holds, if that is what the account allows.

    Raises:
        AssertionError: It is not.
    """
    check_truth(database)
    contents = read_contents(database)
    log = [
        Told(
            cursor=str(change.cursor),
            attempt=json.loads(change.event_meta_json)["attempt"],
            key=_key_of(change.key),
            kind=change.kind,
            heads=change.heads,
        )
        for change in contents.changes
    ]
    check_log(account, log)
    newest = {told.key: told for told in log}
    for entity, versions in contents.versions.items():
        heads = sorted(version for version, found in versions.items() if found.is_head)
        assert heads == sorted(newest.pop(_key_of(entity)).heads)
    assert not newest, "an entity is there if it was changed"
    _check_versions(account, contents)
    return contents


def with_index(database: Path, scratch: Path) -> None:
    """Check the index if there is one that can be used; any other is built anew at the start."""
    try:
        check_index(database, scratch)
    except AssertionError as error:
        if "cannot be used" not in str(error):
            raise


async def check_daemon(
    endpoint: Path, account: Account, *, attempts: Sequence[Attempt] | None = None
) -> list[Told]:
    """Return the whole change log of a daemon that shows what the account allows.

    Words of `attempts`, or of all, are looked for.

    Raises:
        AssertionError: It shows something else.
    """
    log: list[Told] = []
    for user in USERS:
        last = await mark(endpoint, account, user)
        log += await read_log(endpoint, user, after="0", until=last.number)
    log.sort(key=lambda told: told.position)
    check_log(account, log)
    heads = await read_heads(endpoint, {attempt.key for attempt in account.attempts})
    check_heads(log, heads)
    await check_retrieval(endpoint, heads, account.attempts if attempts is None else attempts)
    return log


async def read_heads(endpoint: Path, keys: Iterable[Key]) -> Heads:
    """Return the heads of those of the entities that exist."""
    asked = list(keys)
    requests = [
        (READ, {"meta": meta_of(key.user), "data": {"ref": {"type": key.type, "id": key.id}}})
        for key in asked
    ]
    answers = await ask_all(endpoint, requests)
    return {
        key: answer["result"]["data"]["variants"]
        for key, answer in zip(asked, answers, strict=True)
        if "result" in answer
    }


async def check_retrieval(endpoint: Path, heads: Heads, attempts: Sequence[Attempt]) -> None:
    """Return if listings find all active heads, and words of attempts are found where they stand.

    A word that stands in no active head, because it was superseded, deleted or never accepted, must
    not be found at all.
    """
    active = {
        key: values
        for key, variants in heads.items()
        if (values := [variant["value"] for variant in variants if "value" in variant])
    }
    for user in USERS:
        for type_ in (*TYPES, "artifact"):
            expected = sorted(key.id for key in active if (key.user, key.type) == (user, type_))
            found = await _listed(endpoint, user, type_)
            assert found == expected, f"{type_} of {user}: {set(found) ^ set(expected)}"
    texts: defaultdict[str, set[Key]] = defaultdict(set)
    tags: defaultdict[str, set[Key]] = defaultdict(set)
    for key, values in active.items():
        for value in values:
            tags[value.get("tag", "")].add(key)
            for word in words_in(json.dumps(value)):
                texts[word].add(key)
    for attempt, answer in await _ask_for_words(endpoint, attempts, _by_text):
        _check_hits(attempt, answer, texts[attempt.word], heads)
    for attempt, answer in await _ask_for_words(endpoint, attempts, _by_tag):
        _check_hits(attempt, answer, tags[attempt.word], heads)


async def ask_all(
    endpoint: Path, requests: Sequence[tuple[str, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the answers to requests, in their order, with some of them under way at a time."""
    answers: dict[str | int, dict[str, Any]] = {}
    async with await Peer.connect(endpoint) as peer:
        sent: list[str | int] = []
        for method, params in requests:
            if len(sent) - len(answers) >= _WINDOW:
                answer = await peer.response()
                answers[answer["id"]] = answer
            sent.append(peer.send(method, params))
        while len(answers) < len(sent):
            answer = await peer.response()
            answers[answer["id"]] = answer
    return [answers[request_id] for request_id in sent]


async def read_status(endpoint: Path) -> dict[str, Any]:
    """Return the `data` of the daemon's status."""
    async with await Peer.connect(endpoint) as peer:
        return (await peer.result(STATUS, {"meta": {}, "data": {}}))["data"]


async def mark(endpoint: Path, account: Account, user: str) -> Attempt:
    """Create one more entity in a scope, so that its log has a known end, and return it."""
    key = Key(user, "memo", f"mark-{len(account.attempts)}")
    attempt = account.attempt(account.new_peer(), CREATE, key)
    data = {"type": key.type, "id": key.id, "value": {"text": attempt.word, "tag": attempt.word}}
    async with await Peer.connect(endpoint) as peer:
        meta = meta_of(user, attempt=attempt.number)
        account.settle(attempt, await peer.call(CREATE, {"meta": meta, "data": data}))
    return attempt


def _check_versions(account: Account, contents: Contents) -> None:
    """Return if every version that anybody was told or shown is stored, and led to a head."""
    stored = {_key_of(key): versions for key, versions in contents.versions.items()}
    for attempt in account.told:
        if attempt.version is None:
            continue
        version = stored.get(attempt.key, {}).get(attempt.version)
        assert version is not None, f"the version of {attempt} is not stored"
        value = None if version.value_json is None else json.loads(version.value_json)
        assert value == attempt.value, f"{attempt} was told another value than {value}"
    for key, version in account.seen:
        assert version in stored.get(key, {}), f"version {version} of {key} was read and is gone"
    for key, versions in stored.items():
        reached: set[str] = set()
        waiting = [version for version, found in versions.items() if found.is_head]
        while waiting:
            version = waiting.pop()
            if version not in reached:
                reached.add(version)
                waiting.extend(versions[version].parents)
        assert reached == versions.keys(), f"{key}: {versions.keys() - reached} led to no head"


def _check_order(account: Account, log: Sequence[Told]) -> None:
    """Return if what was answered before another mutation was sent stands before it in the log."""
    position = {told.attempt: told.position for told in log}
    newest = 0
    newest_told: list[int] = [0]  # by number of answers: the greatest cursor that was answered
    for attempt in account.told:
        if attempt.version is not None:
            newest = max(newest, position[attempt.number])
        newest_told.append(newest)
    unanswered: set[int] = set()
    done = {attempt.key for attempt in account.attempts if attempt.number in position}
    for attempt in account.attempts:
        cursor = position.get(attempt.number)
        if cursor is not None:
            before = newest_told[attempt.told_before]
            assert cursor > before, f"{attempt} stands at {cursor}, before what preceded it"
            assert attempt.peer not in unanswered, f"{attempt} was done before an earlier request"
        elif not attempt.is_answered and (attempt.method != CREATE or attempt.key not in done):
            # Creates are under way together, so those behind one that was done or refused may be.
            unanswered.add(attempt.peer)


def _by_text(word: str) -> dict[str, Any]:
    return {"text": word}


def _by_tag(word: str) -> dict[str, Any]:
    return {"where": {"/tag": word}}


async def _ask_for_words(
    endpoint: Path, attempts: Sequence[Attempt], query: Callable[[str], dict[str, Any]]
) -> list[tuple[Attempt, dict[str, Any]]]:
    requests = [
        (
            RETRIEVE,
            {
                "meta": meta_of(attempt.key.user),
                "data": {"query": json.dumps(query(attempt.word))},
            },
        )
        for attempt in attempts
    ]
    return list(zip(attempts, await ask_all(endpoint, requests), strict=True))


def _check_hits(attempt: Attempt, answer: dict[str, Any], expected: set[Key], heads: Heads) -> None:
    found = {
        _key(attempt.key.user, hit["variants"][0]["ref"]): hit["variants"]
        for hit in answer["result"]["data"]["hits"]
    }
    assert found.keys() == expected, f"{attempt.word} is found in {set(found)}, not {expected}"
    for key, variants in found.items():
        assert variants == heads[key], f"a hit shows {variants}, not {heads[key]}"


async def _listed(endpoint: Path, user: str, type_: str) -> list[str]:
    found: list[str] = []
    query = {"order": "id_asc"}
    async with await Peer.connect(endpoint) as peer:
        while True:
            page = await peer.result(
                RETRIEVE,
                {
                    "meta": meta_of(user),
                    "data": {"query": json.dumps(query), "types": [type_], "limit": 100},
                },
            )
            found += [hit["variants"][0]["ref"]["id"] for hit in page["data"]["hits"]]
            if "next_cursor" not in page["meta"]:
                return found
            query = {"order": "id_asc", "cursor": page["meta"]["next_cursor"]}


def _told(user: str, message: dict[str, Any]) -> Told:
    assert message["method"] == CHANGE_EVENT
    meta, change = message["params"]["meta"], message["params"]["data"]["change"]
    assert (meta["workspace_id"], meta["user_id"]) == (WORKSPACE, user)
    return Told(
        cursor=change["cursor"],
        attempt=meta["attempt"],
        key=_key(user, change["ref"]),
        kind=change["kind"],
        heads=tuple(change["head_versions"]),
    )


def _key_of(entity: EntityKey) -> Key:
    return Key(json.loads(entity.scope)["user_id"], entity.type, entity.id)


def _key(user: str, ref: dict[str, str]) -> Key:
    return Key(user, ref["type"], ref["id"])
