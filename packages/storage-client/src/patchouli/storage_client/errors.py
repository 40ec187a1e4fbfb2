"""What can go wrong in a call, by who found it.

    Exception
    ├─ PatchouliRpcError            the daemon answered the request with an error
    └─ StorageClientError           the client found it itself
       ├─ ConfigurationError        a setting that says nothing; also a ValueError
       ├─ NotJsonError              the request cannot be said on the wire; also a ValueError
       ├─ RequestTooLarge           the request line is longer than the daemon takes
       ├─ MissingCapabilityError    the daemon did not grant what the method needs
       ├─ CalledFromHandlerError    the façade was called by its own thread
       ├─ DaemonUnavailable         nobody answers at the endpoint, or the client is not connected
       ├─ ConnectFailedError        the endpoint cannot be connected to, for another reason
       ├─ DaemonStartError          the daemon's command cannot be run
       ├─ StartupTimeoutError       there was no handshake within the time allowed
       ├─ ProtocolVersionError      the daemon speaks another protocol
       ├─ MalformedAnswerError      the daemon said what the protocol does not know
       ├─ ArtifactChangedError      another version came while one was downloaded
       ├─ ConnectionLostError       the connection ended while the call was under way
       └─ ClientClosedError         the client was closed while the call was under way

Programs decide on types, and on `code` and `reason` of a `PatchouliRpcError`; texts are for people.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from patchouli.protocol import JsonValue


class PatchouliRpcError(Exception):
    """The daemon answered with an error; `data["retryable"]`, if there, says whether to retry.

    Attributes:
        method: The method that failed.
        code: Its JSON-RPC code, such as those of `patchouli.protocol.ErrorCode`.
        rpc_message: What the daemon says to people.
        data: What it says to programs, as it was sent.
        reason: `data["reason"]` if `data` is an object and that is a string.
    """

    def __init__(self, method: str, code: int, rpc_message: str, data: JsonValue = None) -> None:
        super().__init__(method, code, rpc_message, data)
        self.method: Final = method
        self.code: Final = code
        self.rpc_message: Final = rpc_message
        self.data: Final = data
        reason = data.get("reason") if isinstance(data, dict) else None
        self.reason: Final[str | None] = reason if isinstance(reason, str) else None

    def __str__(self) -> str:
        return f"{self.method}: {self.reason or self.code}: {self.rpc_message}"

    def of(self, method: str) -> PatchouliRpcError:
        """Return the same refusal as one of `method`."""
        return PatchouliRpcError(method, self.code, self.rpc_message, self.data)

    @property
    def current_versions(self) -> tuple[str, ...]:
        """The heads that a `VERSION_CONFLICT` about one entity names; empty for any other error."""
        found = self.data.get("current_versions") if isinstance(self.data, dict) else None
        if not isinstance(found, list):
            return ()
        return tuple(version for version in found if isinstance(version, str))


class StorageClientError(Exception):
    """The client found by itself that a call cannot succeed."""


class ConfigurationError(StorageClientError, ValueError):
    """Raised when a setting is unknown or of the wrong kind; a retry cannot help."""


class NotJsonError(StorageClientError, ValueError):
    """Raised when a request is not JSON of the wire; nothing was sent, a retry cannot help.

    Attributes:
        path: The place of what is wrong in the parameters, as a JSON Pointer.
        problem: What stands there.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path: Final = path
        self.problem: Final = problem

    def __str__(self) -> str:
        return f"not JSON at {self.path or 'the top'}: {self.problem}"


class RequestTooLarge(StorageClientError):  # noqa: N818 -- the name is part of the contract
    """Raised when a request line is longer than the daemon takes; nothing was sent."""

    def __init__(self, method: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(method, size_bytes, limit_bytes)
        self.method: Final = method
        self.size_bytes: Final = size_bytes
        self.limit_bytes: Final = limit_bytes

    def __str__(self) -> str:
        return (
            f"{self.method}: the request has {self.size_bytes} bytes and the daemon takes "
            f"{self.limit_bytes}"
        )


class MissingCapabilityError(StorageClientError):
    """Raised when the daemon did not grant what a method needs; nothing was sent."""

    def __init__(self, capability: str) -> None:
        super().__init__(capability)
        self.capability: Final = capability

    def __str__(self) -> str:
        return f"the daemon did not grant the capability {self.capability}"


class CalledFromHandlerError(StorageClientError, RuntimeError):
    """Raised when the façade is called by its own thread, where it would wait for itself."""


class DaemonUnavailable(StorageClientError):  # noqa: N818 -- the name is part of the contract
    """Raised when nobody answers at the endpoint, or the client is not connected.

    Nothing was sent; a retry may help after `start()` has succeeded.
    """

    def __init__(self, endpoint: str, problem: str) -> None:
        super().__init__(endpoint, problem)
        self.endpoint: Final = endpoint
        self.problem: Final = problem

    def __str__(self) -> str:
        return f"not connected to {self.endpoint}: {self.problem}"


_TO_DO: Final = {
    "closed": "call `start()` before its methods, or use it in a `with` block",
    "connecting": "wait for `start()` to return",
    "lost": "call `start()` to connect again",
}


def not_ready(endpoint: str, state: str) -> DaemonUnavailable:
    """Return the error of a call in another state than `ready`."""
    return DaemonUnavailable(endpoint, f"the client is {state}; {_TO_DO[state]}")


class ConnectFailedError(StorageClientError):
    """Raised when the endpoint cannot be connected to though somebody may listen there."""

    def __init__(self, endpoint: str, problem: str) -> None:
        super().__init__(endpoint, problem)
        self.endpoint: Final = endpoint
        self.problem: Final = problem

    def __str__(self) -> str:
        return f"cannot connect to {self.endpoint}: {self.problem}"


class DaemonStartError(StorageClientError):
    """Raised when the command of the daemon cannot be run; a retry cannot help.

    The daemon is a package of its own, `patchouli-server`.
    """

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(command, problem)
        self.command: Final = command
        self.problem: Final = problem

    def __str__(self) -> str:
        return f"cannot start the daemon by {self.command!r}: {self.problem}"


class StartupTimeoutError(StorageClientError):
    """Raised when there was no handshake in time; the last failure is the cause, if there was one.

    Attributes:
        timeout_ms: The time that was allowed.
        exit_code: How the daemon that this client started has ended, if it has.
        command: What was run to start it; empty if none was started.
    """

    def __init__(
        self,
        endpoint: str,
        timeout_ms: int,
        exit_code: int | None = None,
        command: tuple[str, ...] = (),
    ) -> None:
        super().__init__(endpoint, timeout_ms, exit_code, command)
        self.endpoint: Final = endpoint
        self.timeout_ms: Final = timeout_ms
        self.exit_code: Final = exit_code
        self.command: Final = command

    def __str__(self) -> str:
        said = f"no daemon answered at {self.endpoint} within {self.timeout_ms} ms"
        if not self.command:
            return said
        if self.exit_code is None:
            return f"{said}; the one that was started still runs and may need more of them"
        return (
            f"{said}; the one that was started has ended with {self.exit_code}, and this says why: "
            f"{shlex.join(self.command)}"
        )


class ProtocolVersionError(StorageClientError):
    """Raised when the daemon answers the handshake with another protocol version than 1."""

    def __init__(self, version: JsonValue) -> None:
        super().__init__(version)
        self.version: Final = version

    def __str__(self) -> str:
        return f"the daemon speaks protocol version {self.version!r}, this client version 1"


class MalformedAnswerError(StorageClientError):
    """Raised when the daemon said what the protocol does not know; a retry cannot help."""


class ArtifactChangedError(StorageClientError):
    """Raised when another version came while one was downloaded; begin again.

    Attributes:
        pinned: The version that the download began with.
        found: The version that came instead.
    """

    def __init__(self, pinned: str, found: str) -> None:
        super().__init__(pinned, found)
        self.pinned: Final = pinned
        self.found: Final = found

    def __str__(self) -> str:
        return f"version {self.found} came while version {self.pinned} was downloaded"


class ConnectionLostError(StorageClientError):
    """Raised when the connection ended under a call; whether the daemon did it is not known."""

    def __init__(self, endpoint: str, problem: str) -> None:
        super().__init__(endpoint, problem)
        self.endpoint: Final = endpoint
        self.problem: Final = problem

    def __str__(self) -> str:
        return f"the connection to {self.endpoint} was lost: {self.problem}"


class ClientClosedError(StorageClientError):
    """Raised when the client was closed under a call; whether the daemon did it is not known."""

    def __str__(self) -> str:
        return "the client was closed"
