"""What one peer has negotiated and holds, apart from how its bytes travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchouli.server.subscriptions import SubscriptionSet


class Session:
    """One peer of the daemon.

    Attributes:
        capabilities: What was negotiated; None until the first successful handshake.
        subscriptions: Its open subscriptions.
        has_uploads: Whether it ever began an upload, so that its end must be told.
    """

    __slots__ = ("capabilities", "has_uploads", "subscriptions")

    def __init__(self, subscriptions: SubscriptionSet) -> None:
        self.capabilities: frozenset[str] | None = None
        self.subscriptions = subscriptions
        self.has_uploads = False
