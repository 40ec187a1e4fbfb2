"""The commands, each as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import Engine, load_policy
from patchouli.protocol import CreateParams, UpdateParams
from patchouli.provider import SystemClock, SystemIds
from patchouli.provider_sqlite import SqliteProvider
from patchouli.server.testing import DaemonProcess, memo, params, revised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # each starts processes

COMMAND = [sys.executable, "-m", "patchouli.server"]


def run(*arguments: str | Path, home: Path | None = None, **more: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if "PATCHOULI" not in name}
    if home is not None:
        environment["PATCHOULI_HOME"] = str(home)
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**environment, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_in_terminal(*arguments: str | Path, home: Path) -> str:
    """Return what a person sees: standard output is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**os.environ, "PATCHOULI_HOME": str(home)},
        stdout=theirs,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    assert process.returncode == 0, process.stderr
    text = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        text += data
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


@pytest.fixture
def daemon(home: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(home) as daemon:
        yield daemon


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Form


def test_version_and_help() -> None:
    version = run("--version")
    usage = run("--help")

    assert (version.returncode, version.stdout) == (0, "patchouli-db 0.1.0\n")
    assert usage.returncode == 0
    for command in (
        "init",
        "serve",
        "status",
        "checkpoint",
        "compact",
        "stop",
        "config",
        "tour",
        "artifacts",
        "export",
    ):
        assert command in usage.stdout


@pytest.mark.parametrize("arguments", [[], ["config"], ["artifacts"]])
def test_without_a_command_there_is_help_and_exit_code_2(arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.returncode == 2
    assert "Usage" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["status", "--fly"],
        ["status", "--timeout", "soon"],
        ["stop", "--wait", "-1"],
        ["stop", "--wait=-1"],
        ["status", "--timeout", "0"],
        ["status", "--timeout", "inf"],
        ["status", "--timeout", "nan"],
        ["init", "--root"],
        ["status", "--endpoint", ""],
        ["serve", "--node-id", " "],
        ["serve", "--log-level", "loud"],
    ],
)
def test_wrong_use_is_told_on_standard_error_with_exit_code_2(arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.returncode == 2
    assert result.stdout == ""
    assert "Usage" in result.stderr


# init


@pytest.mark.scenario(24)
def test_init_makes_a_private_home_and_may_be_repeated(folder: Path) -> None:
    root = folder / "home"

    first = run("init", "--root", root)
    files = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    second = run("init", "--root", root)

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == (
        f"initialized Patchouli home: {root}\n"
        f"policy: {root / 'config.json'}\n"
        f"providers: {root / 'providers.json'}\n"
    )
    assert second.stdout == first.stdout
    assert sorted(files) == [
        "config.json",
        "patchouli.schema.json",
        "providers.json",
        "providers.schema.json",
    ]
    assert files == {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    for directory in ("", "data", "data/artifacts", "run"):
        assert mode(root / directory) == 0o700
    for name in files:
        assert mode(root / name) == 0o600


def test_init_says_the_same_as_json_when_asked_to(folder: Path) -> None:
    root = folder / "home"

    assert json.loads(run("init", "--json", "--root", root).stdout) == {
        "root": str(root),
        "policy": str(root / "config.json"),
        "providers": str(root / "providers.json"),
    }


@pytest.mark.scenario(24)
def test_init_keeps_an_invalid_policy_and_says_what_is_wrong(home: Path) -> None:
    policy = json.loads((home / "config.json").read_text(encoding="utf-8"))
    policy["retention"]["idempotency_seconds"] = -1
    (home / "config.json").write_text(json.dumps(policy), encoding="utf-8")
    before = (home / "config.json").read_bytes()

    result = run("init", home=home)

    assert result.returncode == 1
    assert "retention" in result.stderr
    assert "Traceback" not in result.stderr
    assert (home / "config.json").read_bytes() == before


@pytest.mark.scenario(24)
@pytest.mark.parametrize("name", ["", "data", "data/artifacts", "run"])
def test_init_refuses_a_directory_that_others_can_use(home: Path, name: str) -> None:
    (home / name).chmod(0o755)

    result = run("init", home=home)

    assert result.returncode == 1
    assert "accessible by other users" in result.stderr
    assert mode(home / name) == 0o755


@pytest.mark.scenario(24)
@pytest.mark.parametrize("name", ["config.json", "providers.json"])
def test_init_refuses_a_file_that_others_can_use(home: Path, name: str) -> None:
    (home / name).chmod(0o644)

    result = run("init", home=home)

    assert result.returncode == 1
    assert "accessible by other users" in result.stderr
    assert mode(home / name) == 0o644


@pytest.mark.scenario(24)
def test_init_refuses_a_database_that_others_can_use(home: Path) -> None:
    database = home / "data" / "patchouli.db"
    database.touch(mode=0o600)
    database.chmod(0o644)

    result = run("init", home=home)

    assert result.returncode == 1
    assert "accessible by other users" in result.stderr
    assert mode(database) == 0o644


# Control


def test_status_prints_the_result_for_programs(daemon: DaemonProcess, home: Path) -> None:
    result = run("status", home=home)

    assert result.returncode == 0
    data = json.loads(result.stdout)
    assert data["meta"] == {}
    assert data["data"]["pid"] == daemon.process.pid
    assert result.stdout.startswith('{\n  "meta": {},\n  "data": {\n    "ready": true')


def test_status_prints_lines_for_people(daemon: DaemonProcess, home: Path) -> None:
    text = run_in_terminal("status", home=home)

    assert text.startswith(f"Patchouli daemon at {daemon.endpoint}\n")
    assert re.search(rf"process +{daemon.process.pid}\n", text)
    assert "{" not in text
    as_json = run_in_terminal("status", "--json", home=home)
    assert json.loads(as_json)["data"]["ready"] is True


def test_checkpoint_says_that_it_is_done(daemon: DaemonProcess, home: Path) -> None:
    result = run("checkpoint", "--endpoint", daemon.endpoint)

    assert result.returncode == 0
    assert json.loads(result.stdout) == {"meta": {}, "data": {"completed": True}}
    assert "completed" in run_in_terminal("checkpoint", home=home)


class LongAgo(SystemClock):
    """A clock that stands in 2001."""

    def unix_ms(self) -> int:
        return 1_000_000_000_000


async def write_long_ago(home: Path) -> None:
    """Create a memo and update it twice, as a daemon did in 2001."""
    provider = SqliteProvider(home / "data" / "patchouli.db", clock=LongAgo())
    engine = await Engine.start(
        load_policy(home / "config.json"), provider, clock=LongAgo(), ids=SystemIds()
    )
    result = await engine.create(CreateParams.model_validate(params(memo("a"))))
    for text in ("b", "c"):
        data = revised("a", {"text": text})
        asked = params(data, base_versions=[result.entity.version])
        result = await engine.update(UpdateParams.model_validate(asked))
    await engine.shutdown()


def test_compact_removes_what_is_past_its_retention_and_says_what(home: Path) -> None:
    asyncio.run(write_long_ago(home))
    with DaemonProcess(home):
        first = run("compact", home=home)
        again = run_in_terminal("compact", home=home)

    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout) == {
        "changes": 3,
        "idempotency_records": 0,
        "work_units": 0,
        "versions": 2,
    }
    assert again == "removed: nothing; nothing is past its retention\n"


@pytest.mark.scenario(14)
@pytest.mark.parametrize("wait", [["--wait"], ["--wait", "20"]])
def test_stop_with_wait_returns_when_everything_has_ended(
    daemon: DaemonProcess, home: Path, wait: list[str]
) -> None:
    result = run("stop", *wait, home=home)

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"meta": {}, "data": {"accepted": True}}
    assert not daemon.endpoint.exists()
    assert daemon.wait() == 0
    with DaemonProcess(home):
        status = json.loads(run("status", home=home).stdout)["data"]
    assert status["recovered_after_unclean_shutdown"] is False


@pytest.mark.parametrize("command", ["status", "checkpoint", "compact", "stop"])
def test_without_a_daemon_the_control_commands_say_what_to_do(home: Path, command: str) -> None:
    result = run(command, home=home)

    assert result.returncode == 1
    assert result.stdout == ""
    assert "no daemon is listening" in result.stderr
    assert "patchouli-db serve" in result.stderr


# config


@pytest.mark.scenario(25)
def test_config_check_accepts_the_shipped_files(folder: Path) -> None:
    run("init", "--root", folder / "h")

    policy, providers = folder / "h/config.json", folder / "h/providers.json"
    people = run("config", "check", policy, "--providers", providers)
    programs = run("config", "check", policy, "--providers", providers, "--json")

    assert (people.returncode, people.stdout) == (0, f"valid: {policy}\n")
    assert (programs.returncode, json.loads(programs.stdout)) == (
        0,
        {"valid": True, "errors": [], "warnings": []},
    )
    assert sorted(path.name for path in (folder / "h" / "data").iterdir()) == ["artifacts"]


def with_provider(document: dict[str, Any]) -> dict[str, Any]:
    document["providers"]["far"] = {
        "kind": "remote",
        "endpoint": "http://example.com",
        "token_env": "T",
    }
    return document


def with_rule(document: dict[str, Any]) -> dict[str, Any]:
    document["routing"]["rules"] = [{"scope": {"channel_id": "c"}, "provider": "local"}]
    return document


def without_local(document: dict[str, Any]) -> dict[str, Any]:
    del document["providers"]["local"]
    return document


def with_more(document: dict[str, Any]) -> dict[str, Any]:
    document["more"] = 1
    return document


@pytest.mark.scenario(25)
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (with_rule, "routing.rules[0].scope.channel_id"),
        (with_provider, "providers.far.endpoint"),
        (without_local, "providers.local"),
        (with_more, "more"),
    ],
)
def test_config_check_names_the_place_of_a_defect(home: Path, change: Any, place: str) -> None:
    file = home / "providers.json"
    document = change(json.loads(file.read_text(encoding="utf-8")))
    file.write_text(json.dumps(document), encoding="utf-8")

    told = run("config", "check", home / "config.json", "--providers", file)
    result = run("config", "check", home / "config.json", "--providers", file, "--json")

    assert (told.returncode, told.stdout) == (1, "")
    assert place in told.stderr
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert report["valid"] is False
    assert [error["path"] for error in report["errors"]] == [place]
    assert report["errors"][0]["remedy"]
    assert place in result.stderr
    assert "Traceback" not in result.stderr


def test_config_check_of_no_file_says_so(folder: Path) -> None:
    result = run("config", "check", folder / "nothing.json")

    assert result.returncode == 1
    assert "nothing.json" in result.stderr


def test_config_check_without_a_home_names_the_command_that_makes_one(home: Path) -> None:
    (home / "config.json").unlink()

    result = run("config", "check", home=home)

    assert result.returncode == 1
    assert "patchouli-db init" in result.stderr


def test_config_check_warns_of_routes_that_serve_refuses(home: Path) -> None:
    file = home / "providers.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    document["providers"]["far"] = {
        "kind": "remote",
        "endpoint": "https://far.example.com",
        "token_env": "T",
    }
    document["routing"]["default"] = "far"
    file.write_text(json.dumps(document), encoding="utf-8")

    checked = run("config", "check", home=home)
    served = run("serve", home=home)

    assert checked.returncode == 0
    assert checked.stderr.startswith("warning: routing: ")
    assert served.returncode == 1
    for told in (checked.stderr, served.stderr):
        assert "the remote provider far" in told


def test_config_show_lists_every_bound_with_its_source(folder: Path) -> None:
    result = run("config", "show", "--json", home=folder, PATCHOULI_MAX_CONNECTIONS="7")

    rows = {row["name"]: row for row in json.loads(result.stdout)["settings"]}
    assert rows["home"] == {
        "name": "home",
        "value": str(folder),
        "source": "environment",
        "unit": None,
        "overflow": None,
    }
    assert (rows["max_connections"]["value"], rows["max_connections"]["source"]) == (
        7,
        "environment",
    )
    assert rows["max_in_flight"]["source"] == "default"
    assert rows["max_request_bytes"]["source"] == "fixed"
    assert "max_in_flight" in run("config", "show", home=folder).stdout


def test_a_setting_of_the_environment_that_is_wrong_is_told(folder: Path) -> None:
    result = run("config", "show", home=folder, PATCHOULI_MAX_CONNECTIONS="many")

    assert result.returncode == 1
    assert "PATCHOULI_MAX_CONNECTIONS" in result.stderr


# serve


@pytest.mark.scenario(27)
@pytest.mark.parametrize("command", [["serve"]])
def test_a_second_daemon_is_told_and_the_first_unharmed(
    daemon: DaemonProcess, home: Path, command: list[str]
) -> None:
    second = run(*command, home=home)

    assert second.returncode == 1
    assert "already listening" in second.stderr
    assert json.loads(run("status", home=home).stdout)["data"]["pid"] == daemon.process.pid


@pytest.mark.scenario(27)
def test_a_database_that_is_in_use_is_told_before_anything_changes(
    daemon: DaemonProcess, home: Path, folder: Path
) -> None:
    second = run("serve", "--endpoint", folder / "other", home=home)

    assert second.returncode == 1
    assert "uses the database" in second.stderr
    assert "Traceback" not in second.stderr
    assert not (folder / "other").exists()
    assert daemon.process.poll() is None


@pytest.mark.scenario(27)
def test_a_path_that_is_too_long_is_told(home: Path, folder: Path) -> None:
    result = run("serve", "--endpoint", folder / ("x" * 108), home=home)

    assert result.returncode == 1
    assert "at most 107" in result.stderr


@pytest.mark.scenario(27)
def test_a_start_that_fails_late_leaves_the_database_clean(home: Path, folder: Path) -> None:
    (home / "data" / "artifacts").rmdir()
    (home / "data" / "artifacts").touch()

    failed = run(
        "serve",
        "--artifacts",
        home / "data" / "artifacts",
        "--endpoint",
        folder / "s",
        home=folder / "elsewhere",
    )
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert not (folder / "s").exists()

    with DaemonProcess(folder / "elsewhere"):
        status = json.loads(run("status", home=folder / "elsewhere").stdout)["data"]
    assert status["recovered_after_unclean_shutdown"] is False


def test_a_broken_policy_stops_the_start_before_anything_is_opened(home: Path) -> None:
    (home / "config.json").write_text('{"version": 1,', encoding="utf-8")

    result = run("serve", home=home)

    assert result.returncode == 1
    assert f"{home}/config.json:1:" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (home / "data" / "patchouli.db").exists()


@pytest.mark.parametrize(
    "content", [b"this is no database at all, and longer than a header" * 100, b"SQLite format 3\0"]
)
def test_a_file_that_is_no_database_of_ours_is_told_and_kept(home: Path, content: bytes) -> None:
    database = home / "data" / "patchouli.db"
    database.write_bytes(content)
    database.chmod(0o600)

    result = run("serve", home=home)

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert database.read_bytes() == content


def test_serve_takes_all_its_options(home: Path, folder: Path) -> None:
    policy = folder / "policy.json"
    shutil.copy(home / "config.json", policy)
    daemon = DaemonProcess(
        folder / "no-home",
        "--config",
        str(policy),
        "--providers",
        str(home / "providers.json"),
        "--artifacts",
        str(folder / "bytes"),
        "--endpoint",
        str(folder / "s"),
        "--node-id",
        "oak",
        "--cluster-id",
        "wood",
    )
    with daemon:
        status = run("status", "--endpoint", folder / "s")

    assert json.loads(status.stdout)["data"]["ready"] is True
    assert mode(folder / "bytes") == 0o700
    assert not (folder / "no-home").exists()
    assert not (folder / "s").exists()


def test_a_policy_of_another_place_serves_a_home_that_is_made_for_it(
    home: Path, folder: Path
) -> None:
    policy = folder / "policy.json"
    shutil.copy(home / "config.json", policy)

    with DaemonProcess(folder / "new", "--config", str(policy)):
        status = run("status", home=folder / "new")

    assert json.loads(status.stdout)["data"]["ready"] is True
    assert mode(folder / "new" / "providers.json") == 0o600
