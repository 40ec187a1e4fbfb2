"""What who keeps a daemon does to its files: collect, check, export.

Collection owns the database and the artifacts meanwhile, so it needs the daemon to be stopped; a
daemon collects by itself. The check and the export only read, and a daemon may run.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from patchouli.backend import (
    ArtifactLibrary,
    Checked,
    Collected,
    Export,
    canonical,
    check_objects,
    collect,
    export_document,
    load_policy,
    load_providers,
)
from patchouli.provider import (
    EntityKey,
    OwnershipError,
    ScopeText,
    SystemClock,
    VersionState,
    open_private,
)
from patchouli.provider_sqlite import Archive, SqliteProvider
from patchouli.server.home import database_path, remote_provider_in_use
from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from patchouli.backend import LoadedPolicy
    from patchouli.provider import Json, ReferencesPage, ReferencesPlan, Version
    from patchouli.server.settings import Settings

MOST_SCOPES_NAMED: Final = 5


class Exported(NamedTuple):
    """A document with the entity and the version that it is of."""

    key: EntityKey
    version: str
    export: Export


def collect_artifacts(
    settings: Settings, *, is_trial: bool, progress: Callable[[float], None]
) -> Collected | int:
    """Remove the artifact bytes that nothing names, or count them.

    If the artifacts serve the present database for less than the grace time, nothing is removed and
    the time in Unix milliseconds is returned from which on something may be.

    Raises:
        CommandError: A daemon runs, or there is no database or no artifacts.
        ConfigurationError: The policy or the provider file is not valid.
        ProviderError: The database cannot be used.
        EngineError: The file system refuses.
    """
    _, database = _store(settings)
    _require_artifacts(settings)
    if not database.is_file():
        raise CommandError(
            f"there is no database at {database}, so nothing says which artifacts are needed; "
            "name the right provider file with --providers"
        )
    return asyncio.run(_collect(settings, database, is_trial=is_trial, progress=progress))


def check_artifacts(settings: Settings, *, progress: Callable[[float], None]) -> Checked:
    """Compare all artifact bytes with their digests.

    Raises:
        CommandError: There are no artifacts.
        EngineError: The file system refuses.
    """
    _require_artifacts(settings)
    return asyncio.run(check_objects(settings.artifacts.resolve(), progress=progress))


def export_version(
    settings: Settings,
    type_: str,
    id_: str,
    *,
    scope: str | None,
    version: str | None,
    progress: Callable[[float], None],
) -> Exported:
    """Return the Automerge document of a retained version of an entity.

    `scope` is a JSON object; without it the entity must be in one scope alone. Without `version`
    it must have one head.

    Raises:
        CommandError: There is no such entity or version, or more than one.
        ConfigurationError: The policy or the provider file is not valid.
        ProviderError: The database cannot be read.
    """
    policy, database = _store(settings)
    with Archive(database) as archive:
        key = EntityKey(_scope(archive, policy, type_, id_, scope), type_, id_)
        heads, versions = archive.history(key)
    if not versions:
        raise CommandError(f"there is no {type_} {id_!r} in the scope {key.scope}")
    wanted = _wanted(heads, versions, version)
    try:
        export = export_document(versions, wanted.id, progress=progress)
    except ValueError as error:
        raise CommandError(f"version {wanted.id} cannot be exported: {error}") from error
    return Exported(key, wanted.id, export)


def write_export(path: Path, data: bytes) -> None:
    """Write a document to `path`, whole or not at all; what was there is replaced.

    Raises:
        CommandError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {(error.strerror or '').lower()}") from error


async def _collect(
    settings: Settings, database: Path, *, is_trial: bool, progress: Callable[[float], None]
) -> Collected | int:
    try:
        owner = SqliteProvider(database)
    except OwnershipError as error:
        raise CommandError(f"{error.detail}; while a daemon runs it collects by itself") from error
    try:
        library = ArtifactLibrary(settings.artifacts)
        try:
            with Archive(database) as archive:
                now = SystemClock().unix_ms()
                grace_ms = settings.limits.artifact_grace_seconds * 1000
                since = library.serves_since(archive.incarnation, now_unix_ms=now)
                if since > now - grace_ms:
                    return since + grace_ms

                async def read_references(plan: ReferencesPlan) -> ReferencesPage:
                    return archive.read_references(plan)

                return await collect(
                    library,
                    read_references,
                    before_unix_ms=now - grace_ms,
                    is_trial=is_trial,
                    progress=progress,
                )
        finally:
            library.close()
    finally:
        await owner.shutdown()


def _store(settings: Settings) -> tuple[LoadedPolicy, Path]:
    policy = load_policy(settings.config)
    providers = load_providers(settings.providers, policy.policy)
    remote = remote_provider_in_use(providers)
    if remote is not None:
        raise CommandError(
            f"{settings.providers} routes scopes to the remote provider {remote}, and only what "
            "the local one keeps can be read here"
        )
    return policy, database_path(providers, settings.providers)


def _require_artifacts(settings: Settings) -> None:
    if not settings.artifacts.is_dir():
        raise CommandError(
            f"there are no artifacts at {settings.artifacts}; name their directory with --artifacts"
        )


def _scope(
    archive: Archive, policy: LoadedPolicy, type_: str, id_: str, text: str | None
) -> ScopeText:
    if text is None:
        found = archive.scopes_of(type_, id_, limit=MOST_SCOPES_NAMED + 1)
        if not found:
            raise CommandError(f"there is no {type_} {id_!r} in any scope")
        if len(found) > 1:
            names = "\n  ".join(found[:MOST_SCOPES_NAMED])
            raise CommandError(
                f"several scopes have a {type_} {id_!r}; name one with --scope, such as\n  {names}"
            )
        return found[0]
    scope = _object_or_none(text)
    fields = policy.policy.entity_identity.scope_by
    if scope is None or scope.keys() != set(fields):
        example = json.dumps(dict.fromkeys(fields, "…"), ensure_ascii=False)
        raise CommandError(f"--scope is not a scope of this policy; write it as {example}")
    return ScopeText(canonical(scope))


def _object_or_none(text: str) -> dict[str, Json] | None:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return cast("dict[str, Json]", found)
    return None


def _wanted(heads: list[Version], versions: list[Version], version: str | None) -> Version:
    if version is not None:
        wanted = next((found for found in versions if found.id == version), None)
        if wanted is None:
            raise CommandError(f"the entity has no version {version}, or it is no longer retained")
        if wanted.state is VersionState.DELETED:
            raise CommandError(f"version {version} is a deletion; name one that has a value")
        return wanted
    active = [head for head in heads if head.state is VersionState.ACTIVE]
    if not active:
        raise CommandError("the entity is deleted; name a version with --version")
    if len(active) > 1:
        names = "\n  ".join(head.id for head in active)
        raise CommandError(f"the entity has several versions; name one with --version:\n  {names}")
    return active[0]


def collected_document(done: Collected | int, *, is_trial: bool) -> dict[str, Any]:
    """Return what a collection did, for programs."""
    if isinstance(done, int):
        return {"trial": is_trial, "waits_until_unix_ms": done}
    return {
        "trial": is_trial,
        "objects": done.objects,
        "young": done.young,
        "removed": done.removed,
        "removed_bytes": done.removed_bytes,
    }


def checked_document(done: Checked) -> dict[str, Any]:
    """Return what a check saw, for programs."""
    return {
        "objects": done.objects,
        "bytes": done.bytes,
        "damaged": [f"sha256:{digest}" for digest in done.damaged],
    }


def exported_document(done: Exported) -> dict[str, Any]:
    """Return what was exported, for programs."""
    return {
        "scope": json.loads(done.key.scope),
        "type": done.key.type,
        "id": done.key.id,
        "version": done.version,
        "versions": done.export.versions,
        "heads": list(done.export.heads),
        "bytes": len(done.export.data),
    }
