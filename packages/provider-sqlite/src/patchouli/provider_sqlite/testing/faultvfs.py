"""Disks for tests: one whose calls can be made to fail, one that knows what a power loss leaves.

Both stand between SQLite and the operating system (a VFS of apsw) and behind the two calls that the
provider makes itself, syncing a directory and creating a file. They are given to a provider as its
`Disk`. Shared memory is not touched: it holds nothing that must survive.
"""

from __future__ import annotations

import errno
import os
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw
from patchouli.provider import sync_directory
from patchouli.provider_sqlite.connection import Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

IO_FAILURE: Final[Mapping[str, int]] = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "sync_directory": errno.EIO,
}
"""By kind of call, what SQLite is told by a disk that is broken."""

DISK_FULL: Final[Mapping[str, int]] = {
    "write": apsw.SQLITE_FULL,
    "sync_directory": errno.ENOSPC,
}
"""The same for a disk without room: only what needs room fails."""

_numbers = count(1)


class DiskCall(NamedTuple):
    """One call: `open`, `read`, `write`, `sync`, `truncate`, `delete` or `sync_directory`."""

    kind: str
    path: str


class _Watcher:
    """What is told of every call before it is made, and of those that succeeded."""

    def before(self, call: DiskCall) -> None:
        """Let the call happen, or raise what it fails with."""

    def opened(self, path: str) -> None:
        """`path` is open and exists."""

    def written(self, path: str, offset: int, data: bytes) -> None:
        """`data` is in `path`, but not necessarily on the disk."""

    def truncated(self, path: str, size: int) -> None:
        """`path` has `size` bytes, but not necessarily on the disk."""

    def syncing(self, path: str) -> int:
        """Return how many writes to `path` the sync that begins will cover."""
        return 0

    def synced(self, path: str, covered: int) -> None:
        """That many of the writes to `path` are on the disk."""

    def deleted(self, path: str, *, is_durable: bool) -> None:
        """`path` has no name any more."""

    def directory_synced(self, path: Path) -> None:
        """The names in the directory are on the disk."""


class _Vfs(apsw.VFS):
    def __init__(self, name: str, watcher: _Watcher) -> None:
        super().__init__(name, "")
        self._watcher = watcher

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        if name is None:
            return super().xOpen(name, flags)
        path = name if isinstance(name, str) else name.filename()
        self._watcher.before(DiskCall("open", path))
        file = _File(path, name, flags, self._watcher)
        self._watcher.opened(path)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802, FBT001 - SQLite's name
        self._watcher.before(DiskCall("delete", filename))
        super().xDelete(filename, syncdir)
        self._watcher.deleted(filename, is_durable=syncdir)


class _File(apsw.VFSFile):
    def __init__(
        self, path: str, name: str | apsw.URIFilename, flags: list[int], watcher: _Watcher
    ) -> None:
        super().__init__("", name, flags)
        self._path = path
        self._watcher = watcher

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        self._watcher.before(DiskCall("read", self._path))
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._watcher.before(DiskCall("write", self._path))
        # The stub of apsw names a type that Python 3.11 does not have.
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]
        self._watcher.written(self._path, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        self._watcher.before(DiskCall("truncate", self._path))
        super().xTruncate(newsize)
        self._watcher.truncated(self._path, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._watcher.before(DiskCall("sync", self._path))
        covered = self._watcher.syncing(self._path)
        super().xSync(flags)
        self._watcher.synced(self._path, covered)


class _WatchedDisk(_Watcher):
    """A disk with a name under which SQLite knows it."""

    def __init__(self) -> None:
        name = f"patchouli-test-disk-{next(_numbers)}"
        self._vfs = _Vfs(name, self)
        self.disk = Disk(vfs=name, sync_directory=self._sync_directory)

    def close(self) -> None:
        """Forget the disk; every connection that uses it must have been closed."""
        self._vfs.unregister()

    def _sync_directory(self, path: Path) -> None:
        self.before(DiskCall("sync_directory", str(path)))
        sync_directory(path)
        self.directory_synced(path)


class FaultyDisk(_WatchedDisk):
    """A disk that counts its calls and lets one of them fail, or all from that one on.

    `failures` says what a call of each kind fails with; kinds that it does not name, and calls that
    are not `concerned`, never fail and are not counted. A `sync_directory` fails with the system's
    error number.
    """

    def __init__(
        self,
        failures: Mapping[str, int] = IO_FAILURE,
        *,
        concerned: Callable[[DiskCall], bool] = lambda _: True,
    ) -> None:
        super().__init__()
        self._failures = failures
        self._concerned = concerned
        self._fails_at: int | None = None
        self._is_lasting = False
        self.calls: list[DiskCall] = []
        self.failed: list[DiskCall] = []

    def fail(self, *, at: int, is_lasting: bool = False) -> None:
        """Let the call with this number fail, counted from 0 and from now on."""
        self.calls.clear()
        self.failed.clear()
        self._fails_at = at
        self._is_lasting = is_lasting

    def mend(self) -> None:
        """Let every call succeed again."""
        self._fails_at = None

    def before(self, call: DiskCall) -> None:
        """Count the call and fail it if its time has come."""
        if call.kind not in self._failures or not self._concerned(call):
            return
        number = len(self.calls)
        self.calls.append(call)
        at = self._fails_at
        if at is None or number < at or (number > at and not self._is_lasting):
            return
        self.failed.append(call)
        code = self._failures[call.kind]
        if call.kind == "sync_directory":
            raise OSError(code, os.strerror(code))
        raise apsw.exception_for(code)


class ForgetfulDisk(_WatchedDisk):
    """A disk that can say what would be left of it if the power failed now.

    Left are the bytes that were synced, in files whose names were synced. A file's name is durable
    when its directory was synced after its creation; the first sync of a log or a journal does that
    itself, as SQLite's own layer does. A file that was deleted without such a sync is back, also if
    another one has taken its name since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[DiskCall] = []
        self._lock = threading.Lock()
        self._on_disk: dict[str, bytearray] = {}
        self._pending: dict[str, list[Callable[..., None]]] = {}
        self._durable_names: set[str] = set()
        self._ghosts: dict[str, bytes] = {}  # deleted files whose names the directory still has
        # The files are kept open until the end: so no other one gets the same number, and SQLite's
        # locks stay, which closing any descriptor of a file would drop.
        self._descriptors: dict[str, int] = {}
        self._former: list[int] = []

    def close(self) -> None:
        """Forget the disk; every connection that uses it must have been closed."""
        super().close()
        for descriptor in (*self._descriptors.values(), *self._former):
            os.close(descriptor)

    def before(self, call: DiskCall) -> None:
        """Note the call."""
        self.calls.append(call)

    def opened(self, path: str) -> None:
        """Know the file; what it held before this disk was used counts as synced."""
        with self._lock:
            former = self._descriptors.get(path)
            if former is not None:
                if os.path.samestat(os.fstat(former), os.stat(path)):
                    return
                self._former.append(former)
                if path in self._durable_names and path in self._on_disk:
                    self._ghosts[path] = bytes(self._on_disk[path])
            self._on_disk[path] = bytearray(Path(path).read_bytes())
            self._pending[path] = []
            self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def written(self, path: str, offset: int, data: bytes) -> None:
        """Remember the write until it is synced."""

        def apply(content: bytearray, share: float = 1.0) -> None:
            kept = data[: int(len(data) * share)]
            if kept and len(content) < offset + len(kept):
                content.extend(bytes(offset + len(kept) - len(content)))
            content[offset : offset + len(kept)] = kept

        with self._lock:
            self._pending[path].append(apply)

    def truncated(self, path: str, size: int) -> None:
        """Remember the new size until it is synced."""

        def apply(content: bytearray, share: float = 1.0) -> None:
            if share >= 1:
                del content[size:]

        with self._lock:
            self._pending[path].append(apply)

    def syncing(self, path: str) -> int:
        """Return how many writes wait for a sync now."""
        with self._lock:
            return len(self._pending[path])

    def synced(self, path: str, covered: int) -> None:
        """Put the first of the waiting writes on the disk."""
        with self._lock:
            for apply in self._pending[path][:covered]:
                apply(self._on_disk[path])
            del self._pending[path][:covered]
            if path.endswith(("-wal", "-journal")):
                self._durable_names.add(path)
                self._ghosts.pop(path, None)

    def deleted(self, path: str, *, is_durable: bool) -> None:
        """Forget the file; its name stays in the directory unless that was synced, too."""
        with self._lock:
            content = bytes(self._on_disk.pop(path, b""))
            if is_durable:
                self._durable_names.discard(path)
            elif path in self._durable_names:
                self._ghosts[path] = content

    def directory_synced(self, path: Path) -> None:
        """Make the present names durable, and no others."""
        with self._lock:
            known = {name for name in self._durable_names if Path(name).parent == path}
            self._durable_names -= known
            self._durable_names |= {str(file) for file in path.iterdir()}
            for name in known:
                self._ghosts.pop(name, None)

    def lose_power(
        self, target: Path, *, survives: Callable[[DiskCall], float] = lambda _: False
    ) -> None:
        """Write to the directory `target` what a power loss would leave now.

        `survives` says of each write that was not synced how much of it reached the disk
        nevertheless, from nothing, 0 or False, to all of it: a disk may write early, in any order
        and in parts.
        """
        target.mkdir(mode=0o700)
        with self._lock:
            for name in self._durable_names:
                path = Path(name)
                if name in self._ghosts:
                    content: bytes | bytearray = self._ghosts[name]
                elif name in self._on_disk:
                    content = bytearray(self._on_disk[name])
                    for apply in self._pending[name]:
                        apply(content, survives(DiskCall("write", name)))
                elif path.is_file():
                    content = path.read_bytes()  # the provider itself writes and syncs it
                else:
                    continue
                copy = target / path.name
                copy.write_bytes(content)
                copy.chmod(0o600)
