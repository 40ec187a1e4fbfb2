"""Where the daemon is found, and how one is started.

Without settings it is the daemon that `patchouli-db serve` runs in the same environment: in the
directory PATCHOULI_HOME, or else `.patchouli` of the user, unless PATCHOULI_ENDPOINT and its like
name single places.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from patchouli.storage_client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

DEFAULT_COMMAND: Final = "patchouli-db"
DEFAULT_STARTUP_TIMEOUT_MS: Final = 5000
MAX_STARTUP_TIMEOUT_MS: Final = 2**31 - 1  # 24 days; more milliseconds are no seconds of a float
PIPE_PREFIX: Final = "\\\\.\\pipe\\"


def _place(variable: str, *parts: str) -> Callable[[], str]:
    def find() -> str:
        named = os.environ.get(variable)
        if named:
            return str(Path(named).expanduser().absolute())
        home = os.environ.get("PATCHOULI_HOME") or Path.home() / ".patchouli"
        return str(Path(home).expanduser().absolute().joinpath(*parts))

    return find


def _endpoint() -> str:
    if sys.platform == "win32":
        return os.environ.get("PATCHOULI_ENDPOINT") or PIPE_PREFIX + "patchouli"
    return _place("PATCHOULI_ENDPOINT", "run", "patchouli.sock")()


def _setting(key: str, default: Callable[[], Any]) -> Any:  # what `field` returns has no type
    return field(default_factory=default, metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a client; what is not given has the default of the daemon's own commands.

    A leading `~` of a path is the home of the user, as it is for the daemon.

    Attributes:
        endpoint: Path of the socket, on Windows name of the pipe.
        command: Executable of the daemon, for a start.
        provider_config_path: Provider file that a started daemon reads.
        backend_config_path: Policy file that a started daemon reads.
        artifact_root_path: Where a started daemon keeps the bytes of artifacts.
        auto_start: Whether to start a daemon if none answers.
        startup_timeout_ms: Limit of connecting with the handshake, and again of the wait for a
            daemon that was started; at least 1.
    """

    endpoint: str = _setting("endpoint", _endpoint)
    command: str = _setting("command", lambda: DEFAULT_COMMAND)
    provider_config_path: str = _setting(
        "providerConfigPath", _place("PATCHOULI_PROVIDERS", "providers.json")
    )
    backend_config_path: str = _setting(
        "backendConfigPath", _place("PATCHOULI_CONFIG", "config.json")
    )
    artifact_root_path: str = _setting(
        "artifactRootPath", _place("PATCHOULI_ARTIFACTS", "data", "artifacts")
    )
    auto_start: bool = _setting("autoStart", lambda: True)
    startup_timeout_ms: int = _setting("startupTimeoutMs", lambda: DEFAULT_STARTUP_TIMEOUT_MS)

    def __post_init__(self) -> None:
        for setting in fields(self):
            given = getattr(self, setting.name)
            value = _checked(setting.metadata["key"], setting.type, given)
            object.__setattr__(self, setting.name, value)  # it is frozen from here on

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Self:
        """Return the settings of a configuration document, whose keys are spelled `autoStart`.

        A member that is null is absent.

        Raises:
            ConfigurationError: A key is unknown, or a value is of the wrong kind.
        """
        names = {setting.metadata["key"]: setting.name for setting in fields(cls)}
        given: dict[str, Any] = {}  # checked as the object is made
        for key, value in document.items():
            if key not in names:
                raise ConfigurationError(f"{key!r} is no setting of the storage client")
            if value is not None:
                given[names[key]] = value
        return cls(**given)


def settings(given: object) -> ClientConfig:
    """Return settings, those of the environment if none are given.

    Raises:
        TypeError: `given` is something else.
    """
    if given is None:
        return ClientConfig()
    if not isinstance(given, ClientConfig):
        kind = type(given).__name__
        raise TypeError(f"a ClientConfig is needed, not {kind}; ClientConfig.from_json reads one")
    return given


def _checked(key: str, kind: object, value: object) -> object:
    if kind == "bool":
        if type(value) is not bool:
            raise ConfigurationError(f"{key} must be true or false")
    elif kind == "int":
        if type(value) is not int or not 1 <= value <= MAX_STARTUP_TIMEOUT_MS:
            raise ConfigurationError(f"{key} must be an integer from 1 to {MAX_STARTUP_TIMEOUT_MS}")
    elif not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{key} must be a string that is not blank")
    else:
        return _path(key, value)
    return value


def _path(key: str, value: str) -> str:
    try:
        is_path = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise ConfigurationError(f"{key} is nothing that a path can be: {value!r}")
    return os.path.expanduser(value)
