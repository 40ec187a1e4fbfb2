"""What a power loss leaves of ordinary files: what `os.fsync` was called for, and nothing else.

A file has the bytes that it had when it was synced last, a directory the names that it had when it
was synced last. Nothing is imitated: the calls are made, and their effect is noted beside them.

A process that was killed leaves more behind than the disk has: the next one sees files whose names
were never synced. `syncs_left` plays that: when it has come to 0 every further sync fails, so that
the work ends there, and the next one begins on files as the dead one left them.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pytest


class _Entry(NamedTuple):
    number: int
    is_directory: bool


class ForgetfulFiles:
    """Everything below one directory, as the disk holds it."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        """Watch `root`, whose own name counts as synced; what it holds now does not."""
        self._root: Final = root
        self._lock: Final = threading.Lock()
        self._contents: Final[dict[int, bytes]] = {}
        self._names: Final[dict[int, dict[str, _Entry]]] = {}
        self._descriptors: Final[list[int]] = []  # kept, so that no number is used twice
        self._fsync: Final = os.fsync
        self.syncs_left: int | None = None
        self._patch: Final = patch
        patch.setattr(os, "fsync", self._sync)

    def close(self) -> None:
        """Let the files go, and `os.fsync`: the next one watches it without asking this one."""
        self._patch.setattr(os, "fsync", self._fsync)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def lose_power(self, name: str, target: Path) -> None:
        """Make `target` what would be left of the directory `name` in the root.

        Raises:
            AssertionError: Nothing would.
        """
        with self._lock:
            entry = self._names.get(self._root.stat().st_ino, {}).get(name)
            if entry is None:
                raise AssertionError(f"the name {name} is not on the disk")
            self._restore(entry.number, target)

    def _sync(self, descriptor: int) -> None:
        if self.syncs_left is not None:
            if not self.syncs_left:
                raise OSError(errno.EIO, "no sync is left")
            self.syncs_left -= 1
        number = os.fstat(descriptor).st_ino
        with self._lock:
            path = self._path_of(number)
            if path is None:
                self._fsync(descriptor)
                return
            if number not in self._contents and number not in self._names:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            if path.is_dir():
                with os.scandir(path) as entries:
                    names = {e.name: _Entry(e.inode(), e.is_dir()) for e in entries}
                self._fsync(descriptor)
                self._names[number] = names
            else:
                content = path.read_bytes()
                self._fsync(descriptor)
                self._contents[number] = content

    def _path_of(self, number: int) -> Path | None:
        if self._root.stat().st_ino == number:
            return self._root
        # What another thread removes meanwhile is passed over.
        for folder, folders, files in os.walk(self._root):
            for name in (*folders, *files):
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if path.lstat().st_ino == number:
                        return path
        return None

    def _restore(self, number: int, target: Path) -> None:
        target.mkdir(mode=0o700)
        for name, entry in self._names.get(number, {}).items():
            if entry.is_directory:
                self._restore(entry.number, target / name)
            else:
                (target / name).write_bytes(self._contents.get(entry.number, b""))
                (target / name).chmod(0o600)
