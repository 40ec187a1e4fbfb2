"""What the kernel, the values and the ports raise.

HarnessError
├─ Aborted             something was called off; the default reason of a signal
├─ ScopeClosed         something was to be made in a scope that ends or has ended
├─ ServiceUnavailable  a service is not there, or was not asked for
├─ AlreadyProvided     a name has a provider
├─ NotJson             a value is no lossless JSON
└─ PortError           a port refused or failed; its `code` says why
   ├─ AttachmentError
   ├─ DomainError
   ├─ FsError
   └─ SessionError

Names end in ``Error`` only where the specification's word does.
"""

from __future__ import annotations


class HarnessError(Exception):
    """The root of what this package raises."""


class Aborted(HarnessError):  # noqa: N818 - the specification's word
    """Whoever asked does not want the result any more; raised where a fired signal is noticed."""

    def __init__(self, message: str = "aborted") -> None:
        super().__init__(message)


class ScopeClosed(HarnessError):  # noqa: N818 - the specification's word
    """An effect was to be made in a scope that stops or has stopped; a repetition cannot help.

    Attributes:
        scope: The name of that scope.
    """

    def __init__(self, *, scope: str) -> None:
        super().__init__(f"{scope} is stopping or closed and takes no new effects")
        self.scope = scope


class ServiceUnavailable(HarnessError):  # noqa: N818 - the specification's word
    """A service cannot be had here and now.

    Attributes:
        service: The name that was asked for.
        scope: The name of the scope that asked.
        is_declared: Whether the scope or one above declared the need. If so, the service is missing
            for now and a declared need waits for it; if not, the plugin must declare it.
    """

    def __init__(self, *, service: str, scope: str, is_declared: bool) -> None:
        why = "is not available now" if is_declared else "was not declared as a need"
        super().__init__(f"service {service!r} {why} (asked for by {scope})")
        self.service = service
        self.scope = scope
        self.is_declared = is_declared


class AlreadyProvided(HarnessError):  # noqa: N818 - says what is, like its siblings
    """A service was to be published under a name that has a provider.

    Attributes:
        service: The name.
        provider: The name of the scope that publishes it.
    """

    def __init__(self, *, service: str, provider: str) -> None:
        super().__init__(f"service {service!r} is already provided by {provider}")
        self.service = service
        self.provider = provider


class NotJson(HarnessError, ValueError):  # noqa: N818 - the specification's word
    """A value, or a part of it, is no lossless JSON; it can only be changed by who made it.

    Attributes:
        path: The place of that part as a JSON Pointer; empty for the whole value.
        problem: What is wrong with it.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"not JSON at {path or 'the top'}: {problem}")
        self.path = path
        self.problem = problem


class PortError(HarnessError):
    """A port could not do what it was asked.

    Attributes:
        code: The reason, from the list of the port; programs decide on this alone.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class AttachmentError(PortError):
    """An attachment is missing, or its bytes are not those of its reference."""


class DomainError(PortError):
    """A storage domain cannot be opened, or a record of it be written, as asked.

    Another try may help once the domain is closed elsewhere, or if it was the store that failed.
    """


class FsError(PortError):
    """A path cannot be resolved, listed or read as asked."""


class SessionError(PortError):
    """A session is unknown, not live, or its log is corrupt."""
