"""The home of a daemon: its directories and its configuration, made once and never changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from patchouli.backend import LocalProvider, load_policy, load_providers, read_resource
from patchouli.provider import PrivateFiles, UnsafeStoreError, open_private, sync_directory
from patchouli.provider_sqlite import validate_existing
from patchouli.server.settings import IS_WINDOWS, CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.backend import LoadedPolicy, LoadedProviders, ResourceName

LOCAL: Final = "local"
_DIRECTORIES: Final = ("", "data", "data/artifacts", "run")
_DOCUMENTS: Final[dict[str, ResourceName]] = {
    "config.json": "patchouli.default.json",
    "providers.json": "providers.local.json",
    "patchouli.schema.json": "patchouli.schema.json",
    "providers.schema.json": "providers.schema.json",
}


def create_home(root: Path) -> tuple[LoadedPolicy, LoadedProviders]:
    """Make `root` a home, keeping whatever is there, and return its checked configuration.

    Raises:
        CommandError: Something at `root` can be used by others, or cannot be made.
        ConfigurationError: A document that was there already is not valid; it was left as it is.
        UnsafeStoreError: The database that is there can be used by others.
    """
    make_home(root)
    policy = load_policy(root / "config.json")
    providers = load_providers(root / "providers.json", policy.policy)
    validate_existing(database_path(providers, root / "providers.json"))
    return policy, providers


def make_home(root: Path) -> None:
    """Make what a home consists of at `root`, keeping whatever is there.

    Files appear whole or not at all, so that a crash leaves nothing that a later run refuses.

    Raises:
        CommandError: Something at `root` can be used by others, or cannot be made.
    """
    try:
        for name in _DIRECTORIES:
            _make_directory(root / name)
        for name, resource in _DOCUMENTS.items():
            _make_document(root / name, resource)
        sync_directory(root)  # also for documents of a run that was killed before it came to this
    except UnsafeStoreError as error:
        raise CommandError(error.detail) from error
    except OSError as error:
        raise CommandError(
            f"cannot make the home {root}: {(error.strerror or 'no access').lower()}; name a "
            "directory that you may write, with PATCHOULI_HOME or `init --root`"
        ) from error


def database_path(loaded: LoadedProviders, file: Path) -> Path:
    """Return the database of the local provider that the provider file `file` names."""
    local = loaded.providers.providers[LOCAL]
    assert isinstance(local, LocalProvider)  # noqa: S101 -- a checked file has this one
    return local.database_path(file.absolute().parent)


def remote_provider_in_use(loaded: LoadedProviders) -> str | None:
    """Return the first provider by name that scopes are routed to and that is not the local one."""
    routing = loaded.providers.routing
    names = {routing.default, *(rule.provider for rule in routing.rules)} - {LOCAL}
    return min(names, default=None)


def _make_directory(path: Path) -> None:
    files = PrivateFiles(store="home", operation="create")
    files.make_directory(path)
    files.require_private_directory(path.resolve())


def _make_document(path: Path, resource: ResourceName) -> None:
    files = PrivateFiles(store="home", operation="create")
    if os.path.lexists(path):
        files.require_private_file(path)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(read_resource(resource))
            file.flush()
            os.fsync(file.fileno())
        # A link and no rename: if another init was faster, its file stays.
        if IS_WINDOWS:
            draft.rename(path)
        else:
            os.link(draft, path)
    except FileExistsError:
        files.require_private_file(path)
    finally:
        draft.unlink(missing_ok=True)
