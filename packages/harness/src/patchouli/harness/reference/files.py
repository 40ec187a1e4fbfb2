"""The local disk as a `FileSystem`, without watching.

Every look at the disk runs in a thread. A place is its real path, so one file has one key whatever
links lead to it; containment compares the components of real paths. A read opens nothing but a
regular file, also when something else has taken its place since it was resolved.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from patchouli.harness.errors import FsError
from patchouli.harness.ports import FileSystem, FsEntry, FsInfo, FsPathInfo, FsTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.harness.signals import CancelSignal

R = TypeVar("R")

_CODES: Final = {
    errno.ENOENT: "FS_NOT_FOUND",
    errno.ENOTDIR: "FS_NOT_DIRECTORY",
    errno.EACCES: "FS_PERMISSION_DENIED",
    errno.EPERM: "FS_PERMISSION_DENIED",
}
# Not waiting for a pipe that nobody writes to, and not through a link that was not there before.
_READ_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_READ_BYTES: Final = 1 << 20  # at once
_MAY_FOLD_CASE: Final = sys.platform in ("darwin", "win32")


class LocalFileSystem(FileSystem):
    """The service ``fs``."""

    async def resolve(
        self, path: str, *, cwd: str | None = None, signal: CancelSignal | None = None
    ) -> FsTarget:
        """Return the place of `path`, which need not exist.

        Raises:
            FsError: Besides the rest, ``FS_NOT_FOUND`` if neither `path` nor `cwd` is absolute.
        """
        joined = _joined(path, cwd)

        def look() -> FsTarget:
            return FsTarget(key=os.path.realpath(joined), display_path=path)

        return await _in_thread(look, joined, signal)

    def contains(self, parent: FsTarget, child: FsTarget) -> bool:
        """Compare the components of both real paths."""
        outer, inner = PurePath(parent.key), PurePath(child.key)
        if _MAY_FOLD_CASE and _folds_case(parent.key):
            outer, inner = PurePath(parent.key.casefold()), PurePath(child.key.casefold())
        return inner.is_relative_to(outer)

    async def stat(self, target: FsTarget, *, signal: CancelSignal | None = None) -> FsInfo | None:
        """Return what is at a place."""

        def look() -> FsInfo | None:
            try:
                found = os.stat(target.key)
            except FileNotFoundError:
                return None
            kind = _type_of(found.st_mode)
            return FsInfo(
                version=_version_of(found),
                type="other" if kind == "symlink" else kind,
                size=found.st_size if kind == "file" else None,
            )

        return await _in_thread(look, target.display_path, signal)

    async def lstat(
        self, path: str, *, cwd: str | None = None, signal: CancelSignal | None = None
    ) -> FsPathInfo | None:
        """Return what `path` itself is, a separator at its end or not."""
        joined = _joined(path, cwd)

        def look() -> FsPathInfo | None:
            try:
                found = os.lstat(joined)
            except FileNotFoundError:
                return None
            kind = _type_of(found.st_mode)
            return FsPathInfo(
                version=_version_of(found),
                type=kind,
                size=found.st_size if kind == "file" else None,
            )

        return await _in_thread(look, path, signal)

    async def list_dir(
        self, target: FsTarget, *, signal: CancelSignal | None = None
    ) -> Sequence[FsEntry]:
        """Return the names in a directory, sorted by code point."""

        def look() -> Sequence[FsEntry]:
            with os.scandir(target.key) as entries:
                found = [FsEntry(name=one.name, type=_type_of_entry(one)) for one in entries]
            return sorted(found, key=lambda one: one.name)

        return await _in_thread(look, target.display_path, signal)

    async def read_bytes(
        self, target: FsTarget, max_bytes: int, *, signal: CancelSignal | None = None
    ) -> bytes:
        """Return the whole of a regular file, or refuse it; no file fits into less than nothing."""

        def read() -> bytes:
            try:
                descriptor = os.open(target.key, _READ_FLAGS)
            except OSError as error:
                # A link is in its place (ELOOP, EMLINK), or a socket or idle pipe (ENXIO).
                if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
                    raise _not_regular(target) from error
                raise
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise _not_regular(target)
                parts: list[bytes] = []
                left = max_bytes + 1
                while left > 0 and (part := os.read(descriptor, min(left, _READ_BYTES))):
                    parts.append(part)
                    left -= len(part)
            finally:
                os.close(descriptor)
            if left <= 0:
                raise FsError(
                    "FS_TOO_LARGE", f"{target.display_path!r} has more than {max_bytes} bytes"
                )
            return b"".join(parts)

        return await _in_thread(read, target.display_path, signal)


async def _in_thread(work: Callable[[], R], path: str, signal: CancelSignal | None) -> R:
    _refuse_aborted(path, signal)
    try:
        result = await asyncio.to_thread(work)
    except ValueError as error:  # U+0000 in a path
        raise FsError("FS_NOT_FOUND", f"{path!r} is no path") from error
    except OSError as error:
        code = _CODES.get(error.errno or 0, "FS_IO_ERROR")
        raise FsError(code, f"{path!r}: {error.strerror}") from error
    _refuse_aborted(path, signal)
    return result


def _refuse_aborted(path: str, signal: CancelSignal | None) -> None:
    if signal is not None and signal.reason is not None:
        raise FsError("FS_ABORTED", f"nobody waits for {path!r}") from signal.reason


def _joined(path: str, cwd: str | None) -> str:
    # As a `Path` it has no separator at its end, which would have a last link followed.
    joined = Path(cwd or "", path)
    if not joined.is_absolute():
        # The directory of this process says nothing about where a plugin's caller works.
        raise FsError("FS_NOT_FOUND", f"{str(joined)!r} is relative to nothing")
    return str(joined)


def _type_of(mode: int) -> Literal["file", "directory", "symlink", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _type_of_entry(entry: os.DirEntry[str]) -> Literal["file", "directory", "symlink", "other"]:
    if entry.is_symlink():
        return "symlink"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _version_of(found: os.stat_result) -> str:
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return "-".join(f"{part:x}" for part in parts)


def _not_regular(target: FsTarget) -> FsError:
    return FsError("FS_NOT_REGULAR_FILE", f"{target.display_path!r} is no regular file")


def _folds_case(path: str) -> bool:
    swapped = path.swapcase()
    try:
        return swapped != path and os.path.samefile(path, swapped)
    except OSError:
        return False
