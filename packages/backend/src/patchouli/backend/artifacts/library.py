"""Content-addressed files: bytes by their SHA-256, which scopes put them there, running uploads.

Below the root:

* `objects/sha256/<2 hex>/<62 hex>`: published bytes, never changed;
* `grants/<2 hex>/<62 hex>/<64 hex>`: an empty file says that the scope (first two parts, SHA-256
  of its text) uploaded the content (last part) itself. Without it the content is not there for a
  scope, whatever an entity claims: knowing a digest is not enough to read foreign bytes;
* `uploads/<upload id>.part`: bytes of a running upload, removed at the next start;
* `lock`: held while the library is open; two users of one root would remove each other's parts.

All functions block; callers run them on threads. A name is durable before it is relied upon: the
file is synced, then renamed, then its directory is synced.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from typing import TYPE_CHECKING, NewType

from patchouli.backend.errors import ArtifactStoreError
from patchouli.provider import PrivateFiles, UnsafeStoreError, open_private, sync_directory

try:
    import fcntl
except ImportError:  # not POSIX
    fcntl = None

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider import ScopeText

Digest = NewType("Digest", str)
"""64 lower-case hexadecimal digits of a SHA-256."""

_PART = ".part"


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
        self._lock = open_private(self._root / "lock", os.O_RDWR | os.O_CREAT)
        self._require_ownership()
        self.foreign_entries = self._remove_parts()

    @property
    def _objects(self) -> Path:
        return self._root / "objects" / "sha256"

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
        """Return the descriptor of a new, empty file for an upload."""
        path = self._part(upload_id)
        return open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove_part(self, upload_id: str) -> None:
        """Forget the bytes of an upload, if there still are any."""
        self._part(upload_id).unlink(missing_ok=True)

    def publish(self, upload_id: str, descriptor: int, digest: Digest) -> None:
        """Make the bytes of an upload the object `digest`, durably.

        An object of that name is replaced by these bytes, which were just hashed; so damage to it
        heals, and readers that have it open keep what they had.
        """
        os.fsync(descriptor)
        path = self._object(digest)
        if not path.parent.is_dir():
            path.parent.mkdir(0o700, exist_ok=True)
            sync_directory(path.parent.parent)
        self._part(upload_id).replace(path)
        sync_directory(path.parent)

    def grant(self, scope: ScopeText, digest: Digest) -> None:
        """Remember, durably, that `scope` uploaded `digest`."""
        path = self._grant(scope, digest)
        if path.exists():
            return
        PrivateFiles(store="artifacts", operation="grant").make_directory(path.parent)
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
        sync_directory(path.parent)

    def is_granted(self, scope: ScopeText, digest: Digest) -> bool:
        """Return whether `scope` ever uploaded `digest`."""
        return self._grant(scope, digest).exists()

    def open_object(self, digest: Digest) -> int | None:
        """Return a descriptor for reading the object, or None if there is none."""
        try:
            descriptor = open_private(self._object(digest), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor

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


def append(descriptor: int, data: bytes, *, offset: int) -> None:
    """Write all of `data` at `offset`, or leave the file as long as it was.

    Raises:
        ArtifactStoreError: The bytes could not be written; the upload can go on from `offset`.
    """
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
    except OSError as error:
        os.ftruncate(descriptor, offset)
        raise ArtifactStoreError("the chunk could not be stored; send it again later") from error
