"""Content-addressed files: bytes by their SHA-256, which scopes put them there, running uploads.

Below the root:

* `objects/sha256/<2 hex>/<62 hex>`: published bytes, never changed;
* `grants/<2 hex>/<62 hex>/<64 hex>`: an empty file says that the scope (first two parts, SHA-256
  of its text) uploaded the content (last part) itself. Without it the content is not there for a
  scope, whatever an entity claims: knowing a digest is not enough to read foreign bytes;
* `uploads/<upload id>.part`: bytes of a running upload, removed at the next start;
* `database`: which database the library serves, and since when;
* `lock`: held while the library is open; two users of one root would remove each other's parts.

An object is *young* for a while after it was published, granted or named by a client. The time that
its file bears is that of the last of these, so it is never removed between the moment when a
request relies on it and the commit that names it. What looks at that time and acts on it does so
under one lock. The grants go before the object, durably: nobody is promised bytes that are gone.

All functions block; callers run them on threads. A name is durable before it is relied upon: the
file is synced, then renamed, then its directory is synced. That a name is there is no proof of it:
another thread, or a process that was killed, may have made it and not have come to the sync.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NewType

from patchouli.backend.errors import ArtifactStoreError, OverloadedError
from patchouli.provider import PrivateFiles, UnsafeStoreError, open_private, sync_directory

try:
    import fcntl
except ImportError:  # not POSIX
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from patchouli.provider import ScopeText

Digest = NewType("Digest", str)
"""64 lower-case hexadecimal digits of a SHA-256."""

SHARDS: Final = 256  # directories of objects, by the first byte of the digest

PIECE_BYTES: Final = 1 << 20  # of an object that is read whole

_PART = ".part"
_REST = re.compile(r"[0-9a-f]{62}\Z")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class ArtifactLibrary:
    """An open library; exclusive for this process until `close`."""

    def __init__(self, root: Path) -> None:
        """Open or create the library at `root` and remove uploads that a former process left.

        Raises:
            UnsafeStoreError: Others can get at its files, or another process has it open.
        """
        files = PrivateFiles(store="artifacts", operation="open")
        files.require_trusted_path(root)
        files.make_directory(root)
        self._root = root.resolve()
        for folder in (self._root, self._objects, self._uploads, self._grants):
            files.make_directory(folder)
            files.require_private_directory(folder)
        self._changing = threading.Lock()  # held over a look at an object and what follows from it
        self._wanted: Counter[Digest] = Counter()  # objects that uploads have published
        self._lock = open_private(self._root / "lock", os.O_RDWR | os.O_CREAT)
        self._require_ownership()
        self._shards: set[Path] = set()  # at most 256, whose names this process has synced
        self.foreign_entries = self._remove_parts()

    @property
    def root(self) -> Path:
        """The directory of the library."""
        return self._root

    @property
    def _objects(self) -> Path:
        return _objects_of(self._root)

    @property
    def _uploads(self) -> Path:
        return self._root / "uploads"

    @property
    def _grants(self) -> Path:
        return self._root / "grants"

    def close(self) -> None:
        """Let another process open the library; closing again does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def create_part(self, upload_id: str) -> int:
        """Return the descriptor of a new, empty file for an upload.

        Raises:
            OverloadedError: There is no room.
            ArtifactStoreError: The file system refuses.
        """
        with file_failures("begin the upload again"):
            return open_private(self._part(upload_id), os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove_part(self, upload_id: str) -> None:
        """Forget the bytes of an upload, if there still are any.

        What the file system does not remove now goes at the next start.
        """
        with suppress(OSError):
            self._part(upload_id).unlink(missing_ok=True)

    def publish(self, upload_id: str, descriptor: int, digest: Digest, *, length: int) -> None:
        """Make the `length` bytes of an upload the object `digest`, durably.

        An object of that name is replaced by these bytes, which were just hashed; so damage to it
        heals, and readers that have it open keep what they had.

        Raises:
            OverloadedError: There is no room.
            ArtifactStoreError: The file system refuses. What was written cannot be trusted after
                either: a second sync would succeed whatever the first one has lost.
        """
        path = self._object(digest)
        with file_failures("upload it again", is_retryable=False):
            os.ftruncate(descriptor, length)  # a chunk that failed may have left bytes behind it
            os.utime(self._part(upload_id))
            os.fsync(descriptor)
            if path.parent not in self._shards:
                path.parent.mkdir(0o700, exist_ok=True)
                sync_directory(path.parent.parent)
                self._shards.add(path.parent)
            with self._changing:
                self._part(upload_id).replace(path)
                self._wanted[digest] += 1
            try:
                sync_directory(path.parent)
            except OSError:
                self.forget(digest)
                raise

    def forget(self, digest: Digest) -> None:
        """End the claim of an upload to the object that it published."""
        with self._changing:
            self._wanted[digest] -= 1
            if self._wanted[digest] <= 0:
                del self._wanted[digest]

    def grant(self, scope: ScopeText, digest: Digest) -> None:
        """Remember, durably, that `scope` uploaded `digest`.

        Raises:
            OverloadedError: There is no room.
            ArtifactStoreError: The file system refuses.
        """
        path = self._grant(scope, digest)
        with file_failures("commit the upload again"):
            PrivateFiles(store="artifacts", operation="grant").make_directory(path.parent)
            with self._changing:
                os.utime(self._object(digest))
                os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
            sync_directory(path.parent)

    def is_granted(self, scope: ScopeText, digest: Digest) -> bool:
        """Return whether `scope` uploaded `digest`."""
        return self._grant(scope, digest).exists()

    def renew(self, scope: ScopeText, digest: Digest) -> bool:
        """Return whether `scope` uploaded `digest`; if so, the object is young again."""
        with self._changing:
            if not self.is_granted(scope, digest):
                return False
            with suppress(OSError):  # bytes that are missing are found missing by who reads them
                os.utime(self._object(digest))
            return True

    def open_object(self, digest: Digest) -> int | None:
        """Return a descriptor for reading the object, or None if there is none.

        Raises:
            ArtifactStoreError: The file system refuses.
        """
        with file_failures("try again"):
            try:
                descriptor = open_private(self._object(digest), os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor

    def serves_since(self, incarnation: str, *, now_unix_ms: int) -> int:
        """Return since when the library serves the database `incarnation`: if it is new, from now.

        Raises:
            OverloadedError: There is no room.
            ArtifactStoreError: The file system refuses.
        """
        path = self._root / "database"
        with suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(path.read_bytes())
            if known["incarnation"] == incarnation:
                return int(known["since_unix_ms"])
        draft = path.with_suffix(".new")
        text = json.dumps({"incarnation": incarnation, "since_unix_ms": now_unix_ms})
        with file_failures("try again"):
            descriptor = open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            sync_directory(self._root)
        return now_unix_ms

    def objects(self, shard: int) -> list[Digest]:
        """Return the objects whose digest begins with the byte `shard`, ascending.

        Raises:
            ArtifactStoreError: The file system refuses.
        """
        return list_objects(self._root, shard)

    def is_old(self, digest: Digest, *, before_unix_ms: int) -> bool:
        """Return whether the object is there and has not been young since `before_unix_ms`."""
        try:
            status = self._object(digest).lstat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_mtime_ns < before_unix_ms * 1_000_000

    def length(self, digest: Digest) -> int:
        """Return the bytes of the object, 0 if it is gone."""
        try:
            return self._object(digest).lstat().st_size
        except OSError:
            return 0

    def grants(self, digests: Iterable[Digest]) -> dict[Digest, list[Path]]:
        """Return the grants of objects; it looks through all grants.

        Raises:
            ArtifactStoreError: The file system refuses.
        """
        found: dict[Digest, list[Path]] = {digest: [] for digest in digests}
        with file_failures("try again"):
            for scope in sorted(self._grants.glob("??/*/")):
                with os.scandir(scope) as entries:
                    for entry in entries:
                        if entry.name in found:
                            found[Digest(entry.name)].append(scope / entry.name)
        return found

    def remove(self, digest: Digest, grants: Iterable[Path], *, before_unix_ms: int) -> int | None:
        """Remove an old object that nothing names, its grants first; return its length.

        None if it is gone or has become young, or an upload wants it. What a crash interrupts is
        done by the next collection.

        Raises:
            ArtifactStoreError: The file system refuses.
        """
        path = self._object(digest)
        with file_failures("try again"):
            with self._changing:
                if not self._may_go(digest, before_unix_ms):
                    return None
                for grant in grants:
                    grant.unlink(missing_ok=True)
            for folder in {grant.parent for grant in grants}:
                sync_directory(folder)
            with self._changing:
                if not self._may_go(digest, before_unix_ms):
                    return None
                # To give up a large file takes a while, and requests may wait for the lock.
                condemned = path.replace(self._part(f"collected-{digest}"))
            length = condemned.lstat().st_size
            sync_directory(path.parent)
            condemned.unlink()
            return length

    def _may_go(self, digest: Digest, before_unix_ms: int) -> bool:
        return digest not in self._wanted and self.is_old(digest, before_unix_ms=before_unix_ms)

    def _object(self, digest: Digest) -> Path:
        return self._objects / digest[:2] / digest[2:]

    def _grant(self, scope: ScopeText, digest: Digest) -> Path:
        name = sha256(scope.encode()).hexdigest()
        return self._grants / name[:2] / name[2:] / digest

    def _part(self, upload_id: str) -> Path:
        return self._uploads / f"{upload_id}{_PART}"

    def _require_ownership(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise UnsafeStoreError(
                "artifacts", "open", f"{self._root} is in use by another process; stop it first"
            ) from error

    def _remove_parts(self) -> list[str]:
        """Remove left-over parts; return what else lies there, which nobody of ours put there."""
        foreign: list[str] = []
        for entry in sorted(self._uploads.iterdir()):
            if entry.suffix == _PART and entry.is_file() and not entry.is_symlink():
                entry.unlink()
            else:
                foreign.append(entry.name)
        return foreign


def list_objects(root: Path, shard: int) -> list[Digest]:
    """Return the objects below `root` whose digest begins with the byte `shard`, ascending.

    Files of other names are not ours and are left out.

    Raises:
        ArtifactStoreError: The file system refuses.
    """
    first = f"{shard:02x}"
    with file_failures("try again"):
        try:
            names = os.listdir(_objects_of(root) / first)
        except FileNotFoundError:
            return []
    return [Digest(first + name) for name in sorted(names) if _REST.match(name)]


def read_object(root: Path, digest: Digest) -> Iterator[bytes]:
    """Yield the bytes of an object below `root`, piece by piece.

    Raises:
        FileNotFoundError: It is gone.
        OSError: It cannot be read.
    """
    descriptor = open_private(_objects_of(root) / digest[:2] / digest[2:], os.O_RDONLY)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _objects_of(root: Path) -> Path:
    return root / "objects" / "sha256"


def append(descriptor: int, data: bytes, *, offset: int) -> None:
    """Write all of `data` at `offset`, or leave the file as long as it was.

    Raises:
        OverloadedError: There is no room; the upload can go on from `offset`.
        ArtifactStoreError: The file system refuses; the same holds.
    """
    with file_failures("send the chunk again"):
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
        except OSError:
            with suppress(OSError):  # what stays is overwritten or cut off later
                os.ftruncate(descriptor, offset)
            raise


@contextmanager
def file_failures(advice: str, *, is_retryable: bool = True) -> Generator[None]:
    """Say of a failure of the file system what it is and what helps.

    `is_retryable` says whether the same request may succeed when there is room again.

    Raises:
        OverloadedError: There is no room.
        ArtifactStoreError: It is anything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            message = f"there is no room left for artifacts; make some, then {advice}"
            raise OverloadedError(message, retryable=is_retryable) from error
        raise ArtifactStoreError(f"the file system refuses; {advice}") from error
