from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from patchouli.storage_client import (
    ClientConfig,
    ConfigurationError,
    StorageClient,
    SyncStorageClient,
)


@pytest.fixture(autouse=True)
def _no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "ENDPOINT", "CONFIG", "PROVIDERS", "ARTIFACTS"):
        monkeypatch.delenv(f"PATCHOULI_{name}", raising=False)


def test_the_defaults_are_those_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")

    assert ClientConfig() == ClientConfig(
        endpoint="/somebody/.patchouli/run/patchouli.sock",
        command="patchouli-db",
        provider_config_path="/somebody/.patchouli/providers.json",
        backend_config_path="/somebody/.patchouli/config.json",
        artifact_root_path="/somebody/.patchouli/data/artifacts",
        auto_start=True,
        startup_timeout_ms=5000,
    )


def test_a_home_and_single_places_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATCHOULI_HOME", "/elsewhere")
    monkeypatch.setenv("PATCHOULI_ENDPOINT", "door")

    config = ClientConfig()

    assert config.endpoint == str(Path("door").absolute())
    assert config.backend_config_path == "/elsewhere/config.json"


def test_a_document_is_spelled_in_its_own_way_and_null_is_absent() -> None:
    config = ClientConfig.from_json(
        {
            "endpoint": "/e",
            "command": "/c",
            "providerConfigPath": "/p",
            "backendConfigPath": "/b",
            "artifactRootPath": "/a",
            "autoStart": False,
            "startupTimeoutMs": 1,
        }
    )

    assert config == ClientConfig(
        endpoint="/e",
        command="/c",
        provider_config_path="/p",
        backend_config_path="/b",
        artifact_root_path="/a",
        auto_start=False,
        startup_timeout_ms=1,
    )
    assert ClientConfig.from_json({"autoStart": None, "endpoint": None}) == ClientConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("auto_start", True),
        ("unknown", None),
        ("endpoint", ""),
        ("endpoint", " \t"),
        ("endpoint", 4),
        ("command", ["patchouli-db"]),
        ("autoStart", 1),
        ("autoStart", "true"),
        ("endpoint", "/x/\ud800"),
        ("command", "a\0b"),
        ("startupTimeoutMs", 0),
        ("startupTimeoutMs", 10**400),
        ("startupTimeoutMs", True),
        ("startupTimeoutMs", 5.0),
    ],
)
def test_what_a_setting_cannot_be_is_refused_by_its_name(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=key):
        ClientConfig.from_json({key: value})


def test_settings_are_checked_however_they_are_made() -> None:
    with pytest.raises(ConfigurationError, match="startupTimeoutMs"):
        ClientConfig(startup_timeout_ms=0)


def test_the_home_of_the_user_has_a_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")

    config = ClientConfig(endpoint="~/x.sock", backend_config_path="~/policy.json", command="~")

    assert config.endpoint == "/somebody/x.sock"
    assert config.backend_config_path == "/somebody/policy.json"
    assert config.command == "/somebody"
    assert config == dataclasses.replace(config)


@pytest.mark.parametrize("kind", [StorageClient, SyncStorageClient])
def test_a_client_takes_nothing_else_for_its_settings(kind: Any) -> None:
    with pytest.raises(TypeError, match="from_json"):
        kind({"endpoint": "/x"})
