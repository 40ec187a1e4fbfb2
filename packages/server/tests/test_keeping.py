"""Commands of who keeps the files, each as a process of its own, on what a daemon wrote."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import export_document
from patchouli.protocol import CREATE, DELETE, STATUS, UPDATE
from patchouli.provider import EntityKey, ScopeText
from patchouli.provider_sqlite import Archive
from patchouli.server.testing import (
    DaemonProcess,
    Peer,
    memo,
    params,
    ref,
    revised,
    serving,
    settings_of,
    upload,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # each starts processes

COMMAND = [sys.executable, "-m", "patchouli.server"]
SCOPE = ScopeText('{"user_id":"mira","workspace_id":"atlas"}')
OTHER = {"workspace_id": "atlas", "user_id": "noor"}


def run(*arguments: str | Path, home: Path, is_text: bool = True, **more: Any) -> Any:
    environment = {name: value for name, value in os.environ.items() if "PATCHOULI" not in name}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**environment, "PATCHOULI_HOME": str(home)},
        capture_output=not more,
        text=is_text,
        timeout=60,
        check=False,
        **more,
    )


def object_of(home: Path, content: bytes) -> Path:
    digest = sha256(content).hexdigest()
    return home / "data" / "artifacts" / "objects" / "sha256" / digest[:2] / digest[2:]


def grow_old(home: Path) -> None:
    """Let a day pass by for the library."""
    for path in (home / "data" / "artifacts" / "objects").rglob("*"):
        os.utime(path, (0, 0))
    note = home / "data" / "artifacts" / "database"
    if note.exists():
        known = json.loads(note.read_bytes())
        note.write_text(json.dumps({**known, "since_unix_ms": 0}), encoding="utf-8")


@pytest.fixture
async def kept(home: Path) -> Path:
    """A stopped home with an artifact, and bytes that no artifact names."""
    async with serving(settings_of(home)) as served, await served.connect("artifacts") as peer:
        await upload(peer, b"needed", id="a")
        with pytest.raises(AssertionError):  # its bytes stay, and no entity comes to be
            await upload(peer, b"needless", id="a")
    return home


async def test_collection_waits_then_removes_what_nothing_names(kept: Path) -> None:
    first = run("artifacts", "collect", "--json", home=kept)
    assert json.loads(first.stdout)["waits_until_unix_ms"] > 0
    grow_old(kept)

    trial = run("artifacts", "collect", "--trial", "--json", home=kept)
    assert object_of(kept, b"needless").exists()
    done = run("artifacts", "collect", home=kept)

    assert json.loads(trial.stdout) == {
        "trial": True,
        "objects": 2,
        "young": 0,
        "removed": 1,
        "removed_bytes": 8,
    }
    assert (
        done.stdout == "removed: 1 object, 8 bytes\nkept: 1 object, 0 of them too young to judge\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert object_of(kept, b"needed").exists()
    assert not object_of(kept, b"needless").exists()
    with DaemonProcess(kept):
        pass  # and the home still serves


async def test_what_a_killed_daemon_had_answered_keeps_its_bytes(home: Path) -> None:
    with DaemonProcess(home) as daemon:
        async with await Peer.connect(daemon.endpoint, capabilities=["artifacts"]) as peer:
            await upload(peer, b"needed", id="a")
            with pytest.raises(AssertionError):
                await upload(peer, b"needless", id="a")
        daemon.kill()
    assert run("artifacts", "collect", home=home).returncode == 0  # it notes the database
    grow_old(home)

    done = run("artifacts", "collect", "--json", home=home)

    assert json.loads(done.stdout)["removed"] == 1
    assert object_of(home, b"needed").exists()
    with DaemonProcess(home) as daemon:
        async with await Peer.connect(daemon.endpoint) as peer:
            status = await peer.result(STATUS, params({}))
    assert status["data"]["recovered_after_unclean_shutdown"] is True


def test_collection_leaves_a_running_daemon_alone(home: Path) -> None:
    with DaemonProcess(home) as daemon:
        result = run("artifacts", "collect", home=home)
        assert daemon.process.poll() is None

    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.endswith("while a daemon runs it collects by itself")


@pytest.mark.parametrize("missing", ["data/patchouli.db", "data/artifacts"])
def test_without_a_database_or_artifacts_nothing_is_removed_and_nothing_made(
    home: Path, missing: str
) -> None:
    with DaemonProcess(home):
        pass
    path = home / missing
    path.rename(home / "elsewhere")

    result = run("artifacts", "collect", home=home)

    assert result.returncode == 1
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr
    assert not path.exists()


async def test_the_check_finds_damage_with_and_without_a_daemon(kept: Path) -> None:
    whole = run("artifacts", "check", home=kept)
    object_of(kept, b"needed").write_bytes(b"needy!")

    with DaemonProcess(kept):
        result = run("artifacts", "check", "--json", home=kept)
    lines = run("artifacts", "check", home=kept)

    name = f"sha256:{sha256(b'needed').hexdigest()}"
    assert (whole.returncode, whole.stdout) == (0, "checked: 2 objects, 14 bytes\n")
    assert result.returncode == 1
    assert json.loads(result.stdout) == {"objects": 2, "bytes": 14, "damaged": [name]}
    assert lines.stdout == f"checked: 2 objects, 14 bytes\ndamaged: {name}\n"
    assert "backup" in lines.stderr


@pytest.fixture
async def written(home: Path) -> dict[str, str]:
    """Versions of the memo `a`: two that came together again; `b` in two scopes; `c` deleted."""
    async with serving(settings_of(home)) as served, await served.connect() as peer:

        async def change(method: str, data: Any, *bases: str, **meta: str) -> str:
            more: dict[str, Any] = {"base_versions": list(bases)} if bases else {}
            answer = await peer.result(method, params(data, **more, **meta))
            return answer["data"]["entity"]["version"]

        first = await change(CREATE, memo("a", {"text": "red apple"}))
        left = await change(UPDATE, revised("a", {"text": "red pear"}), first)
        merged = await change(UPDATE, revised("a", {"text": "green apple"}), first)
        await change(CREATE, memo("b"))
        await change(CREATE, memo("b"), **OTHER)
        gone = await change(DELETE, ref("c"), await change(CREATE, memo("c")))
        one = await change(CREATE, memo("d", {"n": 1}))
        await change(UPDATE, revised("d", {"n": 2}), one)
        await change(UPDATE, revised("d", {"n": 3}), one)
        return {"first": first, "left": left, "merged": merged, "gone": gone}


def expected(home: Path, version: str) -> bytes:
    with Archive(home / "data" / "patchouli.db") as archive:
        _, versions = archive.history(EntityKey(SCOPE, "memo", "a"))
    wanted = next(found.id for found in versions if found.id == version)
    return export_document(versions, wanted).data


async def test_export_writes_the_document_of_the_head_while_a_daemon_runs(
    home: Path, folder: Path, written: dict[str, str]
) -> None:
    file = folder / "a.automerge"
    file.write_bytes(b"before")

    with DaemonProcess(home):
        result = run("export", "memo", "a", "--output", file, "--json", home=home)

    told = json.loads(result.stdout)
    assert file.read_bytes() == expected(home, written["merged"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert told["version"] == written["merged"]
    assert told["versions"] == 4  # with the one that was merged at once
    assert told["scope"] == json.loads(SCOPE)
    assert told["bytes"] == file.stat().st_size
    assert sorted(os.listdir(folder)) == ["a.automerge", "home"]


async def test_export_of_an_older_version_goes_down_a_pipe(
    home: Path, written: dict[str, str]
) -> None:
    result = run("export", "memo", "a", "--version", written["left"], home=home, is_text=False)

    assert result.stdout == expected(home, written["left"])
    assert (result.returncode, result.stderr) == (0, b"")


async def test_export_needs_a_scope_where_there_are_several(
    home: Path, folder: Path, written: dict[str, str]
) -> None:
    file = folder / "b"
    refused = run("export", "memo", "b", "-o", file, home=home)
    wrong = run("export", "memo", "b", "-o", file, "--scope", '{"user":"x"}', home=home)
    named = run("export", "memo", "b", "-o", file, "--scope", json.dumps(OTHER), home=home)

    assert refused.returncode == wrong.returncode == 1
    assert SCOPE in refused.stderr
    assert '"workspace_id"' in wrong.stderr
    assert named.returncode == 0
    assert named.stdout.startswith("exported version ")
    assert written


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["memo", "nobody"], "in any scope"),
        (["memo", "nobody", "--scope", SCOPE], "in the scope"),
        (["memo", "a", "--version", "v"], "no version v"),
        (["memo", "c"], "deleted"),
        (["memo", "c", "--version", "{gone}"], "deletion"),
        (["memo", "d"], "--version"),
    ],
)
async def test_what_cannot_be_exported_is_told(
    home: Path, folder: Path, written: dict[str, str], arguments: list[str], said: str
) -> None:
    given = [argument.replace("{gone}", written["gone"]) for argument in arguments]

    result = run("export", *given, "-o", folder / "file", home=home)

    assert result.returncode == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "file").exists()


async def test_export_refuses_a_terminal(home: Path, written: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    result = run("export", "memo", "a", home=home, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    os.close(ours)

    assert result.returncode == 1
    assert "--output" in result.stderr
    assert written


async def test_an_export_that_cannot_be_written_is_told(
    home: Path, folder: Path, written: dict[str, str]
) -> None:
    result = run("export", "memo", "a", "-o", folder / "no" / "file", home=home)

    assert result.returncode == 1
    assert "cannot write" in result.stderr
    assert written


def test_json_beside_a_document_is_wrong_use(home: Path) -> None:
    result = run("export", "memo", "a", "--json", home=home)

    assert result.returncode == 2
    assert "--output" in result.stderr
