"""What the service raises and reports.

MemoryServiceError
├─ RegistrationError        a plugin was not registered; nothing has changed
├─ ConfigurationError       the configuration is refused and the service does not start
└─ CursorsClosedError       consumer cursors are used before they are open or after they were closed
MemorySubscriptionError     a plugin's part of a subscription failed; says whether a retry may help

A value that is no JSON is refused with `patchouli.harness.NotJson`, which names its place.
"""

from __future__ import annotations

from typing import Literal

RegistrationProblem = Literal["blank-id", "duplicate-id", "async-filter", "not-a-plugin"]


class MemoryServiceError(Exception):
    """The root of what this package raises for a mistake of its caller."""


class RegistrationError(MemoryServiceError, ValueError):
    """A plugin cannot be registered as it is; repeating it cannot help.

    Attributes:
        reason: What is wrong, for programs.
        plugin_id: The id that the plugin gave, as it gave it.
    """

    def __init__(self, reason: RegistrationProblem, plugin_id: object, problem: str) -> None:
        super().__init__(f"plugin {plugin_id!r} is not registered: {problem}")
        self.reason = reason
        self.plugin_id = plugin_id


class ConfigurationError(MemoryServiceError, ValueError):
    """The configuration has an unknown key or a value of the wrong kind.

    Attributes:
        problems: One text for each, led by the place as a JSON Pointer.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class CursorsClosedError(MemoryServiceError):
    """The domain of the cursors is not open (any more); a new start of the plugin opens it."""

    def __init__(self) -> None:
        super().__init__("the consumer cursors are not open")


class MemorySubscriptionError(Exception):
    """A plugin's part of a subscription failed; raised by plugins and reported to consumers.

    A plugin says by it what its failure means. Anything else that a plugin, a handler or a cursor
    store raises is reported as one that is neither retryable nor asks for a reset, with the
    original as its cause.

    Attributes:
        retryable: Another attempt from the saved cursor may succeed, and is made.
        reset_required: The cursor is of no use any more; no further attempt is made, and the
            consumer has to take a fresh snapshot.
        code: A reason for programs.
    """

    retryable: bool = False
    reset_required: bool = False
    code: str | None = None

    def __init__(
        self,
        message: str = "",
        *,
        retryable: bool = False,
        reset_required: bool = False,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.reset_required = reset_required
        self.code = code
