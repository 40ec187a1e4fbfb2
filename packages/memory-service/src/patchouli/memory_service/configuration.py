"""The configuration of the service: limits, and the user's policy of who gets which calls.

A null is the same as an absent key, a whole policy included; only the values that a call's
attributes are compared with are data, and null there means null. A key that is not known is
refused, because a misspelt switch would silently do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias, cast

from patchouli.harness import Json, snapshot
from patchouli.memory_service.errors import ConfigurationError
from patchouli.memory_service.meta import Operation
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

DEFAULT_RETRIEVE_TIMEOUT_MS: Final = 30_000
DEFAULT_CANCEL_GRACE_MS: Final = 1_000
DEFAULT_MAX_PENDING_CHANGES: Final = 10_000

LARGEST: Final = 2**63 - 1  # larger numbers count as this one


def _without_nulls(raw: object) -> object:
    if not isinstance(raw, Mapping):
        return raw
    members = cast("Mapping[object, object]", raw)
    return {key: value for key, value in members.items() if value is not None}


def _as_json(raw: object) -> Json:
    return snapshot(raw)


def _saturated(raw: object) -> object:
    return min(raw, LARGEST) if type(raw) is int else raw


Count: TypeAlias = Annotated[int, Field(ge=1), BeforeValidator(_saturated)]
Milliseconds: TypeAlias = Count
Attributes: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_as_json)]  # Any: JSON


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        known = {field.alias or name for name, field in cls.model_fields.items()}
        members = cast("Mapping[object, object]", raw)
        return {
            key: value for key, value in members.items() if value is not None or key not in known
        }


class RoutingPolicy(_Settings):
    """Which calls a user lets a plugin have; selectors that are empty let all pass.

    Attributes:
        enabled: False keeps every call from it.
        operations: The operations that it may get.
        source_types: The kinds of callers that it hears.
        source_ids: The callers that it hears.
        scopes: The scopes that it hears of.
        attributes: Attributes that a call must have, each equal as JSON.
        retrieve_timeout_ms: The deadline of its retrievals; None for that of the service.
    """

    enabled: bool = True
    operations: list[Operation] = []
    source_types: list[str] = Field(default=[], alias="sourceTypes")
    source_ids: list[str] = Field(default=[], alias="sourceIds")
    scopes: list[str] = []
    attributes: Attributes = {}
    retrieve_timeout_ms: Milliseconds | None = Field(default=None, alias="retrieveTimeoutMs")


class MemoryServiceConfig(_Settings):
    """The configuration of the service.

    Attributes:
        retrieve_timeout_ms: The deadline of a retrieval, for each plugin.
        cancel_grace_ms: How long a plugin may go on after a cancellation, or take to subscribe and
            unsubscribe, before it is named in the log, and how long a cancelled caller waits for
            its plugins.
        max_pending_changes: How many emitted changes of a plugin may wait in one subscription.
        routing: The user's policies by plugin id; one for an unknown id does nothing.
    """

    retrieve_timeout_ms: Milliseconds = Field(
        default=DEFAULT_RETRIEVE_TIMEOUT_MS, alias="retrieveTimeoutMs"
    )
    cancel_grace_ms: Milliseconds = Field(default=DEFAULT_CANCEL_GRACE_MS, alias="cancelGraceMs")
    max_pending_changes: Count = Field(
        default=DEFAULT_MAX_PENDING_CHANGES, alias="maxPendingChanges"
    )
    routing: Annotated[dict[str, RoutingPolicy], BeforeValidator(_without_nulls)] = {}

    @classmethod
    def parse(cls, raw: object) -> MemoryServiceConfig:
        """Return the configuration that a host has read; None is an empty one.

        Raises:
            ConfigurationError: An unknown key, or a value of the wrong kind.
        """
        try:
            return cls.model_validate({} if raw is None else raw)
        except ValidationError as error:
            problems = tuple(
                f"{_pointer(problem['loc'])}: {problem['msg']}" for problem in error.errors()
            )
            raise ConfigurationError(problems) from None


def _pointer(place: tuple[int | str, ...]) -> str:
    escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in place)
    return "".join(f"/{step}" for step in escaped)
