"""The bounds of the engine: what a request can make it hold, and what happens beyond.

A size over its bound is `INVALID_REQUEST`, a count of waiting work over its bound `OVERLOADED`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """Bounds with their defaults; a deployment may change them in its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_queued: Positive = Field(
        default=4096,
        description="Mutations under way at once; the next one is answered OVERLOADED.",
    )
    max_awaiting: Positive = Field(
        default=1024,
        description="Requests that wait for a state which they must observe; the next one is "
        "answered OVERLOADED at once.",
    )
    max_ids: Positive = Field(
        default=10_000,
        description="Members of `ids` in a query; more are INVALID_REQUEST.",
    )
    max_conditions: Positive = Field(
        default=256,
        description="Operators in the `where` of a query; more are INVALID_REQUEST.",
    )
    max_page_bytes: Positive = Field(
        default=4 * 1024 * 1024,
        description="Bytes of values after which a page of hits ends early, with a next cursor.",
    )
    max_window_events: Positive = Field(
        default=4096,
        description="Changes of a scope kept for its subscribers; the oldest go, and who is slower "
        "reads the log again.",
    )
    max_window_bytes: Positive = Field(
        default=16 * 1024 * 1024,
        description="Bytes of the changes of a scope kept for its subscribers; the same rule.",
    )
    max_windows_bytes: Positive = Field(
        default=64 * 1024 * 1024,
        description="Bytes of the changes of all scopes kept for subscribers; the same rule, "
        "whatever scope the oldest one is of.",
    )
    max_joins: Positive = Field(
        default=2,
        description="Threads that merge contents; further merges wait for one of them.",
    )
