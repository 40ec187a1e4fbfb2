from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from patchouli.backend import ConfigurationError, read_resource
from patchouli.server import home
from patchouli.server.home import create_home
from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_documents_are_the_shipped_ones(folder: Path) -> None:
    create_home(folder / "h")

    assert (folder / "h" / "config.json").read_bytes() == read_resource("patchouli.default.json")
    assert (folder / "h" / "providers.json").read_bytes() == read_resource("providers.local.json")


def test_a_crash_while_writing_leaves_no_half_document(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(28, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(CommandError, match="no space left"):
            create_home(folder / "h")

    assert list((folder / "h").glob("*.json")) == []
    assert [path for path in (folder / "h").iterdir() if path.is_file()] == []
    create_home(folder / "h")


def test_of_two_that_make_a_home_at_once_the_first_document_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_home(folder / "h")
    theirs = (folder / "h" / "config.json").read_bytes()
    # The other one has written it after we looked and before we linked ours.
    monkeypatch.setattr(home.os.path, "lexists", lambda _: False)

    create_home(folder / "h")

    assert (folder / "h" / "config.json").read_bytes() == theirs
    assert not [path for path in (folder / "h").iterdir() if path.name.startswith(".")]


def test_a_home_that_is_a_file_is_refused(folder: Path) -> None:
    (folder / "h").write_text("precious", encoding="utf-8")

    with pytest.raises(CommandError, match="PATCHOULI_HOME or `init --root`"):
        create_home(folder / "h")

    assert (folder / "h").read_text(encoding="utf-8") == "precious"


def test_a_document_that_was_there_is_checked_and_kept(folder: Path) -> None:
    create_home(folder / "h")
    (folder / "h" / "providers.json").write_text("{}", encoding="utf-8")

    with pytest.raises(ConfigurationError):
        create_home(folder / "h")

    assert (folder / "h" / "providers.json").read_text(encoding="utf-8") == "{}"
