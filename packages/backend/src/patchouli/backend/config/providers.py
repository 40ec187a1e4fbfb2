"""The provider file: which storage providers there are, and which scopes they keep.

The file is read against the policy, because routing may use only the fields of its scope. It never
holds a token, only the name of the environment variable that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from patchouli.backend.canonical import jeq
from patchouli.backend.config.advice import PolicyWarning
from patchouli.backend.config.dialect import compile_schema
from patchouli.backend.config.places import Place, quoted
from patchouli.backend.config.resources import PROVIDERS_SCHEMA
from patchouli.backend.config.shape import located, read_document, shape_defects
from patchouli.backend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from patchouli.backend.config.models import Policy
    from patchouli.backend.config.reading import Document
    from patchouli.backend.config.shape import Source
    from patchouli.provider import Json

LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProvider:
    """A database file of this machine, as the file names it."""

    database: str

    def database_path(self, directory: Path) -> Path:
        """Return the path; a relative one counts from `directory`, that of the provider file."""
        return directory / self.database


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteProvider:
    """A storage node, and the environment variable that holds the token for it."""

    endpoint: str
    token_env: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """Scopes that have all these values belong to `provider`."""

    scope: Mapping[str, Json]
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Rules in order, and the provider of every scope that none of them takes."""

    default: str
    rules: tuple[RoutingRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """A provider file that passed every check; `providers` are in code-point order."""

    providers: Mapping[str, LocalProvider | RemoteProvider]
    routing: Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProviders:
    """A provider file, and what is probably not meant in it."""

    providers: Providers
    warnings: tuple[PolicyWarning, ...]


def load_providers(source: Source, policy: Policy) -> LoadedProviders:
    """Return the provider file in a file (a `Path`) or in a text (`str` or `bytes`).

    Raises:
        ConfigurationError: The first defect, alone or together with `policy`.
    """
    document, name = read_document(source)
    for error in _defects(document, name, policy):
        raise error
    providers = _decoded(cast("dict[str, Any]", document.value))
    return LoadedProviders(providers=providers, warnings=tuple(_unreachable(providers.routing)))


def check_providers_document(source: Source, policy: Policy) -> tuple[ConfigurationError, ...]:
    """Return every defect of the first stage that finds one."""
    try:
        document, name = read_document(source)
    except ConfigurationError as error:
        return (error,)
    return tuple(_defects(document, name, policy))


def endpoint_defect(endpoint: str) -> tuple[str, str] | None:
    """Return (problem, remedy) if no remote provider may be reached at `endpoint`, else None.

    Any host may be reached over HTTPS, only a loopback host over plain HTTP: `localhost`, a literal
    of 127.0.0.0/8, or `[::1]`. User, query and fragment are refused.
    """
    if not endpoint.isprintable() or " " in endpoint:
        return "the endpoint holds blanks or control characters", "Write the address alone."
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "the endpoint is no address", "Write it as https://host:port/path."
    if parts.scheme not in ("http", "https"):
        return "the endpoint is neither https nor http", "Write it as https://host:port/path."
    if not host or port == 0:
        return "the endpoint names no host and port", "Write it as https://host:port/path."
    if "@" in parts.netloc:
        return "the endpoint holds a user or password", "Put the token into token_env's variable."
    if "?" in endpoint or "#" in endpoint:
        return "the endpoint has a query or fragment", "Remove it."
    if parts.scheme == "http" and not is_loopback(host):
        return "plain http is allowed only to this machine", "Write https."
    return None


def is_loopback(host: str) -> bool:
    """Return whether the text `host` (no brackets) means this machine; nothing is resolved."""
    if host.lower() in ("localhost", "::1"):
        return True
    try:
        return IPv4Address(host).is_loopback
    except AddressValueError:
        return False


def _defects(document: Document, name: str | None, policy: Policy) -> Iterator[ConfigurationError]:
    """Yield the defects of the first stage (members written twice, schema, rules) with any."""
    for stage in (_duplicate_defects, _shape_defects, _rule_defects):
        found = False
        for error, place in stage(document, policy):
            found = True
            yield located(error, document, name, place)
        if found:
            return


def _duplicate_defects(
    document: Document, _policy: Policy
) -> Iterator[tuple[ConfigurationError, Place]]:
    for place, offset in document.duplicates:
        position = document.position_of(offset)
        yield (
            ConfigurationError(
                kind="Json",
                path=place.dotted,
                rule="json",
                problem="the member is written twice, again in line "
                f"{position.line}, column {position.column}",
                remedy="Keep one of them.",
            ),
            place,
        )


def _shape_defects(
    document: Document, _policy: Policy
) -> Iterator[tuple[ConfigurationError, Place]]:
    for defect in shape_defects(document, PROVIDERS_SCHEMA):
        place = defect.place if defect.member is None else defect.place / defect.member
        yield (
            ConfigurationError(
                kind="Schema",
                path=place.dotted,
                rule="schema",
                problem=defect.problem,
                remedy=defect.remedy,
            ),
            place,
        )


def _rule_defects(document: Document, policy: Policy) -> Iterator[tuple[ConfigurationError, Place]]:
    value = cast("dict[str, Any]", document.value)
    if type(value["version"]) is not int:
        yield _invalid(Place(("version",)), 1, "the version is no integer", "Write 1.")
    yield from _provider_defects(value["providers"])
    yield from _routing_defects(value["routing"], value["providers"], policy)


def _provider_defects(
    providers: dict[str, dict[str, str]],
) -> Iterator[tuple[ConfigurationError, Place]]:
    root = Place(("providers",))
    if providers[LOCAL]["kind"] != LOCAL:
        yield _invalid(
            root / LOCAL,
            2,
            'the provider "local" is not of kind "local"',
            'Give it the kind "local" and a database, and the remote provider another name.',
        )
    for name in sorted(providers):
        if name != LOCAL and providers[name]["kind"] == LOCAL:
            yield _invalid(
                root / name,
                4,
                'only the provider "local" may be of kind "local"',
                'Make it a provider of kind "remote", or remove it.',
            )
    for name in sorted(providers):
        defect = endpoint_defect(providers[name].get("endpoint", "https://host"))
        if defect is not None:
            yield _invalid(root / name / "endpoint", 6, *defect)


def _routing_defects(
    routing: dict[str, Any], providers: dict[str, Any], policy: Policy
) -> Iterator[tuple[ConfigurationError, Place]]:
    root = Place(("routing",))
    choose = f"Name one of {quoted(sorted(providers))}."
    if routing["default"] not in providers:
        yield _invalid(root / "default", 7, f'there is no provider "{routing["default"]}"', choose)
    scope_by = policy.entity_identity.scope_by
    for index, rule in enumerate(routing["rules"]):
        place = root / "rules" / index
        if rule["provider"] not in providers:
            yield _invalid(
                place / "provider", 9, f'there is no provider "{rule["provider"]}"', choose
            )
        for field, value in rule["scope"].items():
            here = place / "scope" / field
            if field not in scope_by:
                yield _invalid(
                    here,
                    10,
                    f'"{field}" is not part of the scope of the policy',
                    f"Use fields of its scope: {quoted(scope_by)}."
                    if scope_by
                    else "Remove the rule: the policy has one global scope.",
                )
            elif not compile_schema(policy.meta_fields[field].json_schema).is_valid(value):
                yield _invalid(
                    here,
                    11,
                    f'the schema of "{field}" in the policy does not admit this value, so that no '
                    "request could have it",
                    "Write a value that the policy admits.",
                )


def _unreachable(routing: Routing) -> Iterator[PolicyWarning]:
    for index, rule in enumerate(routing.rules):
        for earlier, other in enumerate(routing.rules[:index]):
            if all(
                field in rule.scope and jeq(rule.scope[field], value)
                for field, value in other.scope.items()
            ):
                yield PolicyWarning(
                    path=f"routing.rules[{index}]",
                    message=f"the rule is never used, because rules[{earlier}] takes every scope "
                    "that it would take. Put it before that rule, or remove it.",
                )
                break


def _decoded(value: dict[str, Any]) -> Providers:
    routing = value["routing"]
    return Providers(
        providers={
            name: LocalProvider(database=provider["database"])
            if provider["kind"] == LOCAL
            else RemoteProvider(endpoint=provider["endpoint"], token_env=provider["token_env"])
            for name, provider in sorted(value["providers"].items())
        },
        routing=Routing(
            default=routing["default"],
            rules=tuple(
                RoutingRule(scope=rule["scope"], provider=rule["provider"])
                for rule in routing["rules"]
            ),
        ),
    )


def _invalid(
    place: Place, number: int, problem: str, remedy: str
) -> tuple[ConfigurationError, Place]:
    return (
        ConfigurationError(
            kind="Invalid", path=place.dotted, rule=f"R{number}", problem=problem, remedy=remedy
        ),
        place,
    )
