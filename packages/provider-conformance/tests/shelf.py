"""A small store of another make: one file of JSON lines, read from its start when it is opened.

Each accepted call is a line that is on disk before it is answered. It claims what an engine needs,
idempotency and causal tokens, and no work units and no sessions.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

from patchouli.provider import (
    INTEGER_MAX,
    Capabilities,
    CausalToken,
    Change,
    ChangeKind,
    ChangePage,
    Committed,
    Cursor,
    DeadlineExceededError,
    Divergence,
    DivergenceNode,
    EntityKey,
    GraphNode,
    Hit,
    IdentityTaken,
    MisuseError,
    Observation,
    Order,
    OwnershipError,
    Page,
    Position,
    Provider,
    Raced,
    Reading,
    ReferencesPage,
    Replayed,
    RuntimeGeneration,
    Source,
    Unavailable,
    UnavailableError,
    UnsupportedError,
    Version,
    VersionId,
    VersionState,
    contract,
    holds,
    resolve,
    sort_key,
    text_score,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from patchouli.provider import (
        ChangesPlan,
        Clock,
        Commit,
        CommitOutcome,
        Consistency,
        Publish,
        PublishOutcome,
        ReadOutcome,
        ReadPlan,
        ReferencesPlan,
        Retention,
        RetrieveOutcome,
        RetrievePlan,
        ScopeText,
    )

CLAIMS = Capabilities(
    authority=True, change_stream=True, retrieval=True, idempotency=True, causal_reads=True
)


class ShelfProvider(Provider):
    """The boundary over `folder/journal`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = (folder / "journal").open("a+b", buffering=0)
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._journal.close()
            raise OwnershipError(self.kind, "open", "another process owns the file") from error
        self._clock = clock
        self._is_running = False
        self._woken = asyncio.Event()
        self._generation, self._is_dirty = 0, False
        self._incarnation, self._secret = "", b""
        self._versions: dict[EntityKey, dict[VersionId, tuple[Version, tuple[int, int]]]] = {}
        self._heads: dict[EntityKey, tuple[VersionId, ...]] = {}
        self._log: list[tuple[EntityKey, Change]] = []
        self._tokens: dict[str, tuple[str, int]] = {}
        self._records: dict[str, dict[str, Any]] = {}  # Any: a line of the journal

    @property
    def kind(self) -> str:
        return "shelf"

    def capabilities(self) -> Capabilities:
        return CLAIMS

    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        self._journal.seek(0)
        lines = self._journal.read().split(b"\n")
        if lines[-1]:  # a line without its end was never answered
            self._journal.truncate(self._journal.tell() - len(lines[-1]))
        for line in lines[:-1]:
            self._apply(json.loads(line))
        was_dirty = self._is_dirty
        incarnation = self._incarnation or os.urandom(16).hex()
        self._write({"start": incarnation, "secret": os.urandom(32).hex()})
        self._is_running = True
        return RuntimeGeneration(
            generation=self._generation,
            recovered_after_unclean_shutdown=was_dirty,
            incarnation=self._incarnation,
            secret=self._secret,
        )

    async def health(self) -> None:
        self._admit("health")

    async def checkpoint(self) -> None:
        self._admit("checkpoint")

    async def shutdown(self) -> None:
        if self._is_running:
            self._write({"stop": True})
        self.abandon()

    def abandon(self) -> None:
        """Let go of the file as the end of the process would."""
        self._is_running = False
        self._woken.set()
        self._journal.close()

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        self._admit("read")
        self._refuse("work_units", "read", is_used=plan.unit is not None)
        seen = self._observe(plan.key.scope, plan.consistency, "read")
        if isinstance(seen, Unavailable):
            return seen
        probe = plan.idempotency
        return Reading(
            heads=self._found(plan.key, self._heads.get(plan.key, ())),
            observation=seen,
            bases=self._found(plan.key, plan.base_versions),
            divergence=self._divergence(plan.key, plan.base_versions)
            if plan.with_divergence
            else None,
            record=self._known(probe.identity, probe.request_json, probe.now_unix_ms)
            if probe is not None
            else None,
        )

    async def commit(self, commit: Commit) -> CommitOutcome:
        self._admit("commit")
        self._refuse("work_units", "commit", is_used=commit.staging is not None)
        self._refuse("read_your_writes", "commit", is_used=len(commit.write_sessions) > 0)
        self._require_shape(commit)
        record = commit.idempotency
        if record is not None:
            known = self._known(record.identity, record.request_json, record.now_unix_ms)
            if known is not None:
                return known
        key, heads = commit.key, self._heads.get(commit.key, ())
        if set(heads) != set(commit.expected_heads):
            return Raced(
                heads=self._found(key, heads),
                bases=self._found(key, commit.base_versions),
                divergence=self._divergence(key, commit.base_versions)
                if commit.with_divergence
                else None,
            )
        self._require_known(commit, heads)
        self._require_in_time(commit.deadline_unix_ms, "commit")
        self._write(
            {
                "key": key,
                "versions": [
                    [v.id, v.value_json, v.parents, v.recorded_at_unix_ms]
                    for v in commit.new_versions
                ],
                "heads": commit.head_versions,
                "kind": commit.kind,
                "token": commit.causal_token,
                "meta": commit.event_meta_json,
                "at": commit.recorded_at_unix_ms,
                "record": None
                if record is None
                else {
                    "identity": record.identity,
                    "request": record.request_json,
                    "result": record.result_json,
                    "end": record.expires_at_unix_ms,
                },
            }
        )
        self._woken.set()
        self._woken = asyncio.Event()
        return Committed(cursor=Cursor(len(self._log)))

    async def publish(self, publish: Publish) -> PublishOutcome:
        raise UnsupportedError(self.kind, "publish", "it does not offer work_units")

    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        self._admit("retrieve")
        self._refuse("work_units", "retrieve", is_used=plan.unit is not None)
        seen = self._observe(plan.scope, plan.consistency, "retrieve")
        if isinstance(seen, Unavailable):
            return seen
        hits = [hit for key in self._heads if (hit := self._hit(key, plan)) is not None]
        is_descending = plan.order is Order.ID_DESCENDING
        hits.sort(key=lambda hit: sort_key(plan.order, place(hit)), reverse=is_descending)
        if plan.after is not None:
            start = sort_key(plan.order, plan.after)
            keys = [(sort_key(plan.order, place(hit)), hit) for hit in hits]
            hits = [hit for key, hit in keys if (key < start if is_descending else key > start)]
        size, page = 0, list[Hit]()
        for hit in hits[: plan.limit]:
            size += sum(len((head.value_json or "").encode()) for head in hit.heads)
            if page and size > plan.limit_bytes:
                break
            page.append(hit)
        return Page(hits=tuple(page), has_more=len(page) < len(hits), observation=seen)

    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        self._admit("read_changes")
        if plan.limit < 1:
            raise MisuseError(self.kind, "read_changes", "the limit is below 1")
        own = [change for key, change in self._log if key.scope == plan.scope]
        cutoff = plan.retained_after_unix_ms
        wanted = [
            change
            for change in own
            if change.cursor > plan.after
            and change.recorded_at_unix_ms >= cutoff
            and (plan.types is None or change.type in plan.types)
            and (plan.ids is None or change.id in plan.ids)
        ]
        size, page = 0, list[Change]()
        for change in wanted[: plan.limit]:
            size += len(change.event_meta_json.encode())
            if page and plan.limit_bytes is not None and size > plan.limit_bytes:
                break
            page.append(change)
        frontier = own[-1].cursor if own else Cursor(0)
        is_cut = len(page) == plan.limit or len(page) < len(wanted)
        pruned = [change.cursor for change in own if change.recorded_at_unix_ms < cutoff]
        return ChangePage(
            changes=tuple(page),
            frontier=frontier,
            reached=page[-1].cursor if is_cut else frontier,
            pruned_through=max(pruned, default=Cursor(0)),
            incarnation=self._incarnation,
        )

    async def wait_for_changes(self, scope: ScopeText, after: Cursor) -> None:
        while True:
            self._admit("wait_for_changes")
            woken = self._woken
            if self._frontier(scope) > after:
                return
            await woken.wait()

    async def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        self._admit("read_references")
        if plan.limit < 1:
            raise MisuseError(self.kind, "read_references", "the limit is below 1")
        keys = sorted(key for key in self._heads if key.type == plan.type)
        page = [key for key in keys if plan.after is None or key > plan.after][: plan.limit]
        texts: set[str] = set()
        for key in page:
            for version, _ in self._versions[key].values():
                try:
                    named = resolve(json.loads(version.value_json or "null"), plan.pointer)
                except LookupError:
                    continue
                texts |= {named} if isinstance(named, str) else set()
        is_full = len(page) == plan.limit
        return ReferencesPage(texts=frozenset(texts), reached=page[-1] if is_full else None)

    # Any: a line of the journal, as JSON.
    def _write(self, line: dict[str, Any]) -> None:
        """Put a line on disk, and only then let it have its effect."""
        self._journal.write(json.dumps(line).encode() + b"\n")
        os.fsync(self._journal.fileno())
        self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        if "start" in line:
            self._generation += 1
            self._is_dirty = True
            self._incarnation = line["start"]
            self._secret = self._secret or bytes.fromhex(line["secret"])
            return
        if "stop" in line:
            self._is_dirty = False
            return
        key, cursor = EntityKey(*line["key"]), Cursor(len(self._log) + 1)
        versions = self._versions.setdefault(key, {})
        for ordinal, (name, value, parents, at) in enumerate(line["versions"]):
            version = Version(
                id=name,
                state=VersionState.DELETED if value is None else VersionState.ACTIVE,
                value_json=value,
                parents=tuple(parents),
                recorded_at_unix_ms=at,
            )
            versions[name] = (version, (cursor, ordinal))
        self._heads[key] = tuple(line["heads"])
        change = Change(
            cursor=cursor,
            type=key.type,
            id=key.id,
            kind=ChangeKind(line["kind"]),
            head_versions=tuple(line["heads"]),
            causal_token=CausalToken(line["token"]),
            event_meta_json=line["meta"],
            recorded_at_unix_ms=line["at"],
        )
        self._log.append((key, change))
        self._tokens[line["token"]] = (key.scope, cursor)
        if line["record"] is not None:
            self._records[line["record"]["identity"]] = line["record"]

    def _admit(self, operation: str) -> None:
        if not self._is_running:
            raise UnavailableError(self.kind, operation, "it does not run")

    def _refuse(self, claim: str, operation: str, *, is_used: bool) -> None:
        if is_used:
            CLAIMS.require(claim, provider=self.kind, operation=operation)

    def _require_in_time(self, deadline_unix_ms: int | None, operation: str) -> None:
        if deadline_unix_ms is not None and self._clock.unix_ms() >= deadline_unix_ms:
            raise DeadlineExceededError(self.kind, operation, "the deadline has passed")

    def _require(self, detail: str, *, holds: bool) -> None:
        if not holds:
            raise MisuseError(self.kind, "commit", detail)

    def _require_shape(self, commit: Commit) -> None:
        names = [version.id for version in commit.new_versions]
        heads = commit.head_versions
        self._require("no version is new", holds=len(names) > 0)
        self._require("a version is repeated", holds=len(set(names)) == len(names))
        self._require("no head", holds=len(heads) > 0)
        self._require("a head is repeated", holds=len(set(heads)) == len(heads))
        for version in commit.new_versions:
            is_active = version.state is VersionState.ACTIVE
            has_value = version.value_json is not None
            self._require("value and state disagree", holds=is_active == has_value)
            self._require("no JSON", holds=not has_value or is_json(version.value_json or ""))
        times = [commit.recorded_at_unix_ms, *(v.recorded_at_unix_ms for v in commit.new_versions)]
        self._require("no time", holds=all(0 <= time <= INTEGER_MAX for time in times))

    def _require_known(self, commit: Commit, heads: tuple[VersionId, ...]) -> None:
        known = set(self._versions.get(commit.key, {}))
        for version in commit.new_versions:
            self._require("it exists", holds=version.id not in self._versions.get(commit.key, {}))
            self._require("an unknown parent", holds=known.issuperset(version.parents))
            known.add(version.id)
        possible = {*heads, *(version.id for version in commit.new_versions)}
        self._require("an unknown head", holds=possible.issuperset(commit.head_versions))
        self._require("a used token", holds=commit.causal_token not in self._tokens)

    def _known(self, identity: str, request: str, now: int) -> Replayed | IdentityTaken | None:
        record = self._records.get(identity)
        if record is None or record["end"] <= now:
            return None
        if record["request"] != request:
            return IdentityTaken()
        return Replayed(result_json=record["result"])

    def _frontier(self, scope: str) -> Cursor:
        own = (change.cursor for key, change in reversed(self._log) if key.scope == scope)
        return next(own, Cursor(0))

    def _observe(
        self, scope: str, consistency: Consistency, operation: str
    ) -> Observation | Unavailable:
        self._refuse("linearizable_reads", operation, is_used=bool(consistency.linearization_keys))
        for session in consistency.sessions:
            self._refuse("monotonic_reads", operation, is_used=session.monotonic_reads)
            self._refuse("read_your_writes", operation, is_used=session.read_your_writes)
        self._require_in_time(consistency.deadline_unix_ms, operation)
        if Source.AUTHORITY not in consistency.allowed_sources:
            return Unavailable(detail="there is no replica")
        frontier = self._frontier(scope)
        for token in consistency.minimum_tokens:
            if self._tokens.get(token, ("", 0))[0] != scope:
                return Unavailable(detail="a token is not known yet", frontier=frontier)
        return Observation(
            source=Source.AUTHORITY,
            frontier=frontier,
            causal_token=self._log[frontier - 1][1].causal_token if frontier else None,
        )

    def _found(self, key: EntityKey, names: Sequence[VersionId]) -> tuple[Version, ...]:
        versions = self._versions.get(key, {})
        return tuple(versions[name][0] for name in sorted(set(names)) if name in versions)

    def _divergence(self, key: EntityKey, bases: Sequence[VersionId]) -> Divergence | None:
        heads = self._found(key, self._heads.get(key, ()))
        active = [head.id for head in heads if head.state is VersionState.ACTIVE]
        known = [base.id for base in self._found(key, bases)]
        if set(active) == set(known):
            return None
        versions = self._versions.get(key, {})

        def find(names: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
            return {
                name: GraphNode(
                    id=name, parents=versions[name][0].parents, sequence=versions[name][1]
                )
                for name in names
                if name in versions
            }

        base, walked = walk([*active, *known], find)
        kept = contract(walked, [*active, *known, *([base] if base is not None else [])])
        return Divergence(
            base=base,
            nodes=tuple(
                DivergenceNode(
                    id=node.id,
                    parents=node.parents,
                    sequence=node.sequence,
                    value_json=versions[node.id][0].value_json,
                )
                for node in kept
            ),
        )

    def _hit(self, key: EntityKey, plan: RetrievePlan) -> Hit | None:
        is_asked = key.scope == plan.scope
        is_asked = is_asked and (plan.types is None or key.type in plan.types)
        if not is_asked or (plan.ids is not None and key.id not in plan.ids):
            return None
        heads = self._found(key, self._heads[key])
        matches: list[tuple[float, int]] = []
        for head in heads:
            if head.value_json is None:
                continue
            value = json.loads(head.value_json)
            score = 0.0 if plan.text is None else text_score(value, plan.text)
            if score is not None and all(holds(condition, value) for condition in plan.filters):
                matches.append((score, head.recorded_at_unix_ms))
        if not matches:
            return None
        return Hit(
            key=key,
            heads=heads,
            score=max(score for score, _ in matches),
            recorded_at_unix_ms=max(time for _, time in matches),
        )


def place(hit: Hit) -> Position:
    """Return the place of `hit` in an order."""
    return Position(
        score=hit.score,
        recorded_at_unix_ms=hit.recorded_at_unix_ms,
        type=hit.key.type,
        id=hit.key.id,
    )


def is_json(text: str) -> bool:
    """Return whether `text` is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
