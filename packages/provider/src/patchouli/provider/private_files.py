"""Files and directories that no other user may read or replace: the rules of every local store.

The functions take the name of the store and of the operation only to say them in their errors.
Modes are checked on POSIX; elsewhere symbolic links are refused and modes are left to the system.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from patchouli.provider.errors import UnsafeStoreError

if TYPE_CHECKING:
    from pathlib import Path

IS_POSIX = os.name == "posix"
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PrivateFiles:
    """The rules, with the names that errors carry."""

    def __init__(self, *, store: str, operation: str) -> None:
        self._store = store
        self._operation = operation

    def require_trusted_path(self, path: Path) -> None:
        """Return if no symbolic link on the way to `path` belongs to a user who is not trusted.

        Trusted are root and the effective user. Components that do not exist are not looked at.

        Raises:
            UnsafeStoreError: A link belongs to somebody else.
        """
        absolute = path.absolute()
        for component in (*reversed(absolute.parents), absolute):
            status = self._status(component)
            if status is None:
                return
            if stat.S_ISLNK(status.st_mode) and IS_POSIX and status.st_uid not in {0, os.geteuid()}:
                raise self._unsafe(component, "is a symbolic link of another user; remove it")

    def make_directory(self, path: Path) -> None:
        """Create `path` and what is missing above it with mode 0700, durably; keep what exists.

        The name of one that exists is made durable, too: who made it may have been killed before.
        """
        if path.is_dir():
            with contextlib.suppress(PermissionError):  # above it lies what is not ours
                sync_directory(path.parent)
            return
        self.make_directory(path.parent)
        path.mkdir(DIRECTORY_MODE, exist_ok=True)
        sync_directory(path.parent)

    def require_private_directory(self, path: Path) -> None:
        """Return if `path` is a real directory that only its owner can use.

        Raises:
            UnsafeStoreError: It is something else, or others have access.
        """
        status = self._status(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise self._unsafe(path, "is not a directory; move it away")
        self._require_mode(path, status, _OTHERS, "chmod 700")

    def require_owned_directory(self, path: Path) -> None:
        """Return if only the effective user can change what is in the directory `path`.

        Raises:
            UnsafeStoreError: It is no directory, of another user, or others may write to it.
        """
        status = self._status(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise self._unsafe(path, "is not a directory; move it away or name another place")
        if IS_POSIX and status.st_uid != os.geteuid():
            raise self._unsafe(path, "belongs to another user; name a directory of your own")
        self._require_mode(path, status, _OTHERS_WRITE, "chmod go-w")

    def require_private_file(self, path: Path) -> None:
        """Return if `path` does not exist or is a regular file that only its owner can use.

        Raises:
            UnsafeStoreError: It is a link or something else, or others have access.
        """
        status = self._status(path)
        if status is None:
            return
        if not stat.S_ISREG(status.st_mode):
            raise self._unsafe(path, "is not a regular file; move it away")
        self._require_mode(path, status, _OTHERS, "chmod 600")

    def _require_mode(self, path: Path, status: os.stat_result, forbidden: int, mend: str) -> None:
        if IS_POSIX and stat.S_IMODE(status.st_mode) & forbidden:
            raise self._unsafe(path, f"is accessible by other users; run: {mend} {path}")

    def _status(self, path: Path) -> os.stat_result | None:
        try:
            return path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _unsafe(self, path: Path, problem: str) -> UnsafeStoreError:
        return UnsafeStoreError(self._store, self._operation, f"{path} {problem}")


def open_private(path: Path, flags: int) -> int:
    """Return a descriptor of `path`, created with mode 0600 and never reached through a link."""
    no_follow = getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags | no_follow | os.O_CLOEXEC if IS_POSIX else flags, FILE_MODE)


def sync_directory(path: Path) -> None:
    """Make the names in `path` durable; a system without such a call keeps them by itself."""
    if not IS_POSIX:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
