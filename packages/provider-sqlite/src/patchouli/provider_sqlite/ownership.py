"""Exclusive ownership of a database and the privacy of its files.

One process at a time owns a database: it holds an exclusive lock on the file
`<database>.lock`, which is never deleted, because a lock on a deleted file
excludes nobody. The directory is resolved once; a link on the way that is turned elsewhere later
has no effect.

The lock file also remembers which database it locked last, and how far that one had come. A
database that is behind this witness, or that has none although it ran before, was copied or
restored, and gets another incarnation. What cannot be known: a copy made together with its lock
file, and a restored backup that is not older than the last start, stop or checkpoint.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from patchouli.provider import (
    CorruptStoreError,
    OwnershipError,
    PrivateFiles,
    UnavailableError,
    UnsafeStoreError,
    open_private,
    sync_directory,
)
from patchouli.provider_sqlite.connection import Disk
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from collections.abc import Callable

_OPEN: Final = "open"
_WITNESS_BYTES: Final = 256
_LOCKED_BYTE: Final = 1 << 20  # beyond the witness: such a lock also keeps others from reading it
_SIDECARS: Final = (".lock", "-wal", "-shm", "-index", "-index-wal", "-index-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What the lock file says of the database that it locked last."""

    incarnation: str
    generation: int
    last_cursor: int


def validate_existing(path: Path) -> None:
    """Return if a database at `path`, there or not, would be private; create and change nothing.

    Raises:
        UnsafeStoreError: Its directory or one of its files is not safe from other users.
    """
    files = PrivateFiles(store=KIND, operation=_OPEN)
    directory = path.absolute().parent
    files.require_trusted_path(directory)
    if not os.path.lexists(directory):
        return
    resolved = directory.resolve()
    files.require_owned_directory(resolved)
    _require_private_files(files, resolved / path.name)


class Ownership:
    """The lock on one database, held from `acquire` to `release`."""

    def __init__(self, path: Path, lock_descriptor: int, files: PrivateFiles) -> None:
        self.path = path
        self._lock_descriptor: int | None = lock_descriptor
        self._files = files
        self._identity = _identity(path)

    @classmethod
    def acquire(cls, path: Path, *, disk: Disk | None = None) -> Self:
        """Make `path` and its lock file exist, private and owned by this process alone.

        A step that fails leaves what the later steps would have made uncreated.

        Raises:
            OwnershipError: Another process owns the database.
            UnsafeStoreError: Its directory or one of its files is not safe from other users.
            CorruptStoreError: The file is empty or missing, and what it held is not.
            UnavailableError: The file system refuses.
        """
        sync = (disk or Disk()).sync_directory or sync_directory
        files = PrivateFiles(store=KIND, operation=_OPEN)
        try:
            directory = path.absolute().parent
            files.require_trusted_path(directory)
            files.make_directory(directory)
            resolved = directory.resolve() / path.name
            files.require_owned_directory(resolved.parent)
            _require_private_files(files, resolved)
            is_new = _create(resolved, sync)
            lock = _open_lock(_lock_path(resolved), sync)
        except OSError as error:
            raise _refused(path, error) from error
        try:
            _lock(lock, _lock_path(resolved))
            owned = cls(resolved, lock, files)
            if is_new:
                owned.forget_witness()
            else:
                owned.require_content()
            return owned
        except BaseException as error:
            os.close(lock)
            if isinstance(error, OSError):
                raise _refused(path, error) from error
            raise

    def require_unchanged(self) -> None:
        """Return if the files that SQLite opened are the ones that were checked, and private.

        Raises:
            UnsafeStoreError: A file was replaced meanwhile or is not private.
        """
        _require_private_files(self._files, self.path)
        if _identity(self.path) != self._identity:
            raise UnsafeStoreError(KIND, _OPEN, f"{self.path} was replaced while it was opened")

    def require_content(self) -> None:
        """Return if the file is not one that lost all it held.

        SQLite would take an empty file for a new database, and throw its log away.

        Raises:
            CorruptStoreError: It is.
        """
        if self.path.stat().st_size == 0 and (self.read_witness() or _has_log(self.path)):
            detail = (
                f"{self.path} is empty, and it held a database before; restore it from a backup, "
                "or remove it and what lies beside it to begin anew"
            )
            raise CorruptStoreError(KIND, _OPEN, detail)

    def require_whole_pages(self, page_bytes: int) -> None:
        """Return if the file does not end within a page, which SQLite would fill up with zeros.

        While there is a log, a page that a full disk cut off may still be in it.

        Raises:
            CorruptStoreError: It does.
        """
        if self.path.stat().st_size % page_bytes and not _has_log(self.path):
            detail = f"{self.path} was cut off within a page; restore it from a backup"
            raise CorruptStoreError(KIND, _OPEN, detail)

    def forget_witness(self) -> None:
        """Remember nothing of a database that was here before and is gone."""
        if self._lock_descriptor is not None:
            os.ftruncate(self._lock_descriptor, 0)
            os.fsync(self._lock_descriptor)

    def read_witness(self) -> Witness | None:
        """Return what the lock file remembers; None if it is new or not readable."""
        if self._lock_descriptor is None:
            return None
        os.lseek(self._lock_descriptor, 0, os.SEEK_SET)
        text = os.read(self._lock_descriptor, _WITNESS_BYTES)
        try:
            return Witness(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def write_witness(self, witness: Witness) -> None:
        """Remember `witness` durably. It must not be ahead of what the database holds on disk."""
        if self._lock_descriptor is None:
            return
        text = json.dumps(
            {
                "incarnation": witness.incarnation,
                "generation": witness.generation,
                "last_cursor": witness.last_cursor,
            }
        )
        # One write of one sector, padded so that it covers a longer predecessor.
        os.lseek(self._lock_descriptor, 0, os.SEEK_SET)
        os.write(self._lock_descriptor, text.ljust(_WITNESS_BYTES - 1).encode() + b"\n")
        os.fsync(self._lock_descriptor)

    def release(self) -> None:
        """Give the database up; a second call does nothing."""
        descriptor, self._lock_descriptor = self._lock_descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _require_private_files(files: PrivateFiles, path: Path) -> None:
    files.require_private_file(path)
    for suffix in _SIDECARS:
        files.require_private_file(path.with_name(path.name + suffix))


def _create(path: Path, sync: Callable[[Path], None]) -> bool:
    """Create an empty database file if there is none; return whether there was none.

    An existing one is not opened: closing a descriptor of it would drop the locks that another
    connection of this process holds (POSIX).
    """
    if os.path.lexists(path):
        return False
    if _has_log(path):
        detail = (
            f"{path} is missing, and its last changes are still in {_log_path(path)}; bring the "
            "database back, or move that file away to begin anew"
        )
        raise CorruptStoreError(KIND, _OPEN, detail)
    os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    sync(path.parent)
    return True


def _log_path(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _has_log(path: Path) -> bool:
    log = _log_path(path)
    return log.is_file() and log.stat().st_size > 0


def _open_lock(path: Path, sync: Callable[[Path], None]) -> int:
    is_new = not path.exists()
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    if is_new:
        sync(path.parent)
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        _try_lock(descriptor)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}:
            raise _refused(path, error) from error
        detail = f"another process uses the database and holds {path}; stop it first"
        raise OwnershipError(KIND, _OPEN, detail) from error


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _refused(path: Path, error: OSError) -> UnavailableError:
    name = errno.errorcode.get(error.errno or 0, "an error")
    return UnavailableError(KIND, _OPEN, f"the system answered {name} for {path}")
