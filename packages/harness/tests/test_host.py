"""The reference host as a whole: what it publishes, images and workspaces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import (
    AttachmentError,
    CancelSource,
    DomainChanged,
    DomainError,
    DomainSpec,
    Kernel,
    NotJson,
    PendingPlugin,
    PluginSpec,
)
from patchouli.harness.reference import ReferenceHost, ScriptedModel

if TYPE_CHECKING:
    from pathlib import Path

SERVICES = (
    "agents",
    "attachments",
    "fs",
    "sessionPersistence",
    "sessionQuery",
    "sessions",
    "tools",
    "workspaceRegistry",
)


async def test_it_publishes_every_port(kernel: Kernel, tmp_path: Path) -> None:
    ReferenceHost(kernel, domains_path=tmp_path / "domains.db")

    scope = kernel.root.plugin(
        PluginSpec(name="all", start=lambda _, __: None, needs=(*SERVICES, "storageDomain"))
    )
    await scope

    assert scope.missing == ()
    assert scope.state == "active"


async def test_without_a_file_whoever_needs_domains_stays_pending(kernel: Kernel) -> None:
    ReferenceHost(kernel)
    plugin = PluginSpec(name="cursors", start=lambda _, __: None, needs=("storageDomain",))

    kernel.root.plugin(plugin)

    assert kernel.pending() == [PendingPlugin(name="cursors", missing=("storageDomain",))]


async def test_a_domain_left_open_is_closed_with_the_kernel(tmp_path: Path) -> None:
    async with Kernel() as kernel:
        host = ReferenceHost(kernel, domains_path=tmp_path / "domains.db")
        assert host.domains is not None
        spec = DomainSpec(name="notes", version=1, tables={"t": lambda _: None})
        domain = await host.domains.open(spec)

    with pytest.raises(DomainError, match="closed"):
        await domain.table("t").put("k", 1)


async def test_options_that_are_no_json_make_neither_agent_nor_session(kernel: Kernel) -> None:
    host = ReferenceHost(kernel)
    options: Any = {"temperature": float("nan")}

    with pytest.raises(NotJson):
        host.create_agent(ScriptedModel(), options=options)

    assert (host.sessions.list(), host.agents.list()) == ((), ())


async def test_an_image_is_what_its_reference_names(kernel: Kernel) -> None:
    host = ReferenceHost(kernel)
    ref = host.attachments.add_image(b"dots", media_type="image/png", width=2, height=1, name="d")

    image = await host.attachments.read_image(ref)
    renamed: Any = {**ref, "name": "other"}
    wider: Any = {**ref, "width": 3}
    unknown: Any = {**ref, "attachmentId": "img-0"}

    assert (image.data, image.ref) == (b"dots", ref)
    assert (await host.attachments.read_image(renamed)).ref == ref
    for wrong, code in ((wider, "ATTACHMENT_MISMATCH"), (unknown, "ATTACHMENT_NOT_FOUND")):
        with pytest.raises(AttachmentError) as caught:
            await host.attachments.read_image(wrong)
        assert caught.value.code == code


async def test_workspaces_are_told_and_know_whether_they_are_there(
    kernel: Kernel, tmp_path: Path
) -> None:
    told: list[DomainChanged] = []
    kernel.root.on("domain/changed", told.append)
    host = ReferenceHost(kernel)
    (tmp_path / "garden").mkdir()

    workspace = host.workspaces.add(tmp_path / "." / "garden")
    with pytest.raises(ValueError, match="already"):
        host.workspaces.add(tmp_path / "garden")
    present = await workspace.status()
    (tmp_path / "garden").rmdir()
    absent = await workspace.status()
    source = CancelSource()
    asking = asyncio.create_task(workspace.status(signal=source.signal))
    await asyncio.sleep(0)
    source.cancel(ValueError("enough"))
    for asked in (asking, workspace.status(signal=source.signal)):
        with pytest.raises(ValueError, match="enough"):
            await asked
    listed = host.workspaces.list()
    host.workspaces.remove(workspace)

    assert (present, absent) == ("ok", "missing-dir")
    assert [(one.title, one.path) for one in listed] == [
        ("garden", str((tmp_path / "garden").resolve()))
    ]
    assert [(change.domain, change.key, change.operation) for change in told] == [
        ("workspaces", workspace.id, "put"),
        ("workspaces", workspace.id, "delete"),
    ]
    assert host.workspaces.list() == ()
