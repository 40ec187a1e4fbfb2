"""What a policy may say and probably does not mean: warnings, never errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchouli.backend.config.models import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWarning:
    """Something that is allowed and is probably not meant, and what to do about it.

    `path` is a dotted path, or the JSON Pointer of a member that is written twice.
    """

    path: str
    message: str


def advice(policy: Policy) -> tuple[PolicyWarning, ...]:
    """Return the warnings about `policy`, which must have passed `check_policy`."""
    return ()
