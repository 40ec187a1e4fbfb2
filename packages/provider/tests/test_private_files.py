"""Names of directories are durable, whoever made them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from patchouli.provider import PrivateFiles, private_files

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FILES = PrivateFiles(store="test", operation="make")


def test_each_directory_that_is_made_gets_a_durable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(private_files, "sync_directory", synced.append)

    FILES.make_directory(tmp_path / "a" / "b")

    assert synced[-2:] == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_there_gets_a_durable_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    (tmp_path / "left").mkdir()  # by a process that was killed before it could sync
    monkeypatch.setattr(private_files, "sync_directory", synced.append)

    FILES.make_directory(tmp_path / "left")

    assert synced == [tmp_path]


def test_a_directory_below_one_that_cannot_be_read_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    (tmp_path / "home").mkdir()
    monkeypatch.setattr(private_files, "sync_directory", refuse)

    FILES.make_directory(tmp_path / "home")

    assert os.listdir(tmp_path) == ["home"]
