"""`patchouli.changes.*@1`: subscriptions and the notifications that belong to them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from patchouli.protocol.entities import Names
from patchouli.protocol.errors import Reason
from patchouli.protocol.shapes import (
    Array,
    Closed,
    NonEmpty,
    NotificationParams,
    Params,
    Ref,
    Result,
    Token,
    Unique,
)
from pydantic import Field, Strict

ChangeKind: TypeAlias = Literal["created", "updated", "deleted", "conflicted", "resolved"]

ClosedReason: TypeAlias = Annotated[Reason, Strict(strict=False)] | Literal["SERVER_STOPPING"]


class ChangeFilter(Closed):
    """Which changes of the scope are wanted; an absent member restricts nothing."""

    types: Names | None = None
    ids: Names | None = None


class SubscribeData(Closed):
    """Where to begin and what to leave out; without a cursor, after all that is there."""

    filter: ChangeFilter | None = None
    after_cursor: Token | None = None


class SubscribeParams(Params):
    """Starts a subscription."""

    data: SubscribeData


class SubscribeResultData(Closed):
    """The subscription's name on this connection, and the position after which events follow."""

    subscription_id: NonEmpty
    cursor: Token


class SubscribeResult(Result):
    """Answers `subscribe`, before the first event."""

    data: SubscribeResultData


class UnsubscribeData(Closed):
    """The subscription to end."""

    subscription_id: NonEmpty


class UnsubscribeParams(Params):
    """Ends a subscription."""

    data: UnsubscribeData


class UnsubscribeResultData(Closed):
    """Whether the subscription was there; no event of it follows either way."""

    removed: bool


class UnsubscribeResult(Result):
    """Answers `unsubscribe`."""

    data: UnsubscribeResultData


class Change(Closed):
    """One published change; `cursor` is the position to resume after it."""

    cursor: Token
    ref: Ref
    kind: ChangeKind
    head_versions: Annotated[
        tuple[Token, ...],
        Array(),
        Field(min_length=1),
        Unique(),
    ]


class ChangeEventData(Closed):
    """A change, and the subscription it is for."""

    subscription_id: NonEmpty
    change: Change


class ChangeEventParams(NotificationParams):
    """Notifies of a change; `meta` is the bound metadata of the request that made it."""

    data: ChangeEventData


class SubscriptionClosedData(Closed):
    """The last position that was accepted or delivered, and why nothing follows."""

    subscription_id: NonEmpty
    cursor: Token
    reason: ClosedReason


class SubscriptionClosedParams(NotificationParams):
    """Notifies that a subscription has ended without the client's doing."""

    data: SubscriptionClosedData


class SubscriptionBoundaryData(Closed):
    """A position up to which everything that passes the filter was delivered."""

    subscription_id: NonEmpty
    cursor: Token


class SubscriptionBoundaryParams(NotificationParams):
    """Notifies that a subscription has moved on though nothing passed its filter."""

    data: SubscriptionBoundaryData
