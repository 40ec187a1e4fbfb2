"""Workspaces in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from patchouli.harness.events import DOMAIN_CHANGED, DomainChanged
from patchouli.harness.ports import Workspace, WorkspaceRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.harness.kernel import Kernel
    from patchouli.harness.signals import CancelSignal

WORKSPACES_DOMAIN: Final = "workspaces"  # the name under which changes are told


class _Workspace(Workspace):
    def __init__(self, workspace_id: str, path: str, title: str) -> None:
        self._id = workspace_id
        self._path = path
        self._title = title

    @property
    def id(self) -> str:
        return self._id

    @property
    def path(self) -> str:
        return self._path

    @property
    def title(self) -> str:
        return self._title

    async def status(self, *, signal: CancelSignal | None = None) -> Literal["ok", "missing-dir"]:
        if signal is not None:
            signal.raise_if_cancelled()
        is_there = await asyncio.to_thread(Path(self._path).is_dir)
        if signal is not None:
            signal.raise_if_cancelled()
        return "ok" if is_there else "missing-dir"


class MemoryWorkspaces(WorkspaceRegistry):
    """The service ``workspaceRegistry``; its changes are told as ``domain/changed``."""

    def __init__(self, kernel: Kernel, *, new_id: Callable[[], str]) -> None:
        self._kernel = kernel
        self._new_id = new_id
        self._workspaces: dict[str, Workspace] = {}

    def add(self, path: Path, *, title: str | None = None) -> Workspace:
        """Register the directory `path`, links followed, under a new id.

        Raises:
            ValueError: It is registered already.
        """
        canonical = path.resolve()
        if any(one.path == str(canonical) for one in self._workspaces.values()):
            raise ValueError(f"{canonical} is a workspace already")
        workspace = _Workspace(self._new_id(), str(canonical), title or canonical.name)
        self._workspaces[workspace.id] = workspace
        self._tell(workspace, "put")
        return workspace

    def remove(self, workspace: Workspace) -> None:
        """Register a workspace no more; its directory stays."""
        del self._workspaces[workspace.id]
        self._tell(workspace, "delete")

    def list(self) -> Sequence[Workspace]:
        """Return the workspaces in the order in which they were added."""
        return tuple(self._workspaces.values())

    def _tell(self, workspace: Workspace, operation: Literal["put", "delete"]) -> None:
        change = DomainChanged(
            domain=WORKSPACES_DOMAIN,
            table="workspaces",
            key=workspace.id,
            operation=operation,
            value={"path": workspace.path, "title": workspace.title}
            if operation == "put"
            else None,
        )
        self._kernel.root.notify(DOMAIN_CHANGED, change)
