"""Who may open a database, and what is left alone when somebody may not."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import OwnershipError, UnavailableError, UnsafeStoreError
from patchouli.provider_sqlite import Disk, validate_existing
from patchouli.provider_sqlite.ownership import Ownership, Witness

if TYPE_CHECKING:
    from pathlib import Path

SIDECARS = ("db", "db.lock", "db-wal", "db-shm", "db-index", "db-index-wal", "db-index-shm")
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def files_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def test_missing_directories_and_files_are_made_private_and_durable(tmp_path: Path) -> None:
    synced: list[Path] = []
    path = tmp_path / "one" / "two" / "db"

    ownership = Ownership.acquire(path, disk=Disk(sync_directory=synced.append))

    assert [mode(tmp_path / "one"), mode(path.parent)] == [0o700, 0o700]
    assert files_in(path.parent) == ["db", "db.lock"]
    assert [mode(path), mode(path.with_name("db.lock"))] == [0o600, 0o600]
    assert synced == [path.parent.resolve()] * 2
    ownership.release()


def test_a_umask_does_not_widen_or_narrow_what_is_made(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Ownership.acquire(tmp_path / "new" / "db").release()
    finally:
        os.umask(before)

    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "new" / "db") == 0o600


def test_the_second_owner_is_refused_and_the_first_keeps_what_it_has(home: Path) -> None:
    first = Ownership.acquire(home / "db")

    with pytest.raises(OwnershipError, match=r"db\.lock"):
        Ownership.acquire(home / "db")
    with pytest.raises(OwnershipError):
        Ownership.acquire(home / "db")
    first.release()
    first.release()

    second = Ownership.acquire(home / "db")
    second.release()
    assert files_in(home) == ["db", "db.lock"], "the lock file stays"


def test_a_directory_that_others_can_read_is_accepted_and_left_as_it_is(home: Path) -> None:
    home.chmod(0o755)

    Ownership.acquire(home / "db").release()

    assert mode(home) == 0o755


@pytest.mark.parametrize("unsafe", [0o777, 0o720, 0o702, 0o1777])
def test_a_directory_that_others_can_write_is_refused(home: Path, unsafe: int) -> None:
    home.chmod(unsafe)

    with pytest.raises(UnsafeStoreError, match="accessible by other users"):
        Ownership.acquire(home / "db")

    assert files_in(home) == []
    assert mode(home) == unsafe


@pytest.mark.parametrize("name", SIDECARS)
@pytest.mark.parametrize("unsafe", [0o644, 0o620, 0o602])
def test_a_file_that_others_can_use_is_refused_before_anything_is_made(
    home: Path, name: str, unsafe: int
) -> None:
    (home / name).write_bytes(b"content")
    (home / name).chmod(unsafe)

    with pytest.raises(UnsafeStoreError, match="accessible by other users"):
        Ownership.acquire(home / "db")

    assert files_in(home) == [name]
    assert mode(home / name) == unsafe
    assert (home / name).read_bytes() == b"content"


@pytest.mark.parametrize("name", SIDECARS)
def test_a_link_in_the_place_of_a_file_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (home / name).symlink_to(target)

    with pytest.raises(UnsafeStoreError, match="not a regular file"):
        Ownership.acquire(home / "db")

    assert files_in(home) == [name]
    assert target.read_bytes() == b"precious"


def test_a_dangling_link_in_the_place_of_the_database_is_refused(home: Path) -> None:
    (home / "db").symlink_to(home / "nowhere")

    with pytest.raises(UnsafeStoreError):
        Ownership.acquire(home / "db")

    assert files_in(home) == ["db"]


def test_a_link_of_ones_own_leads_to_the_directory_it_named_when_it_was_opened(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(mode=0o700)
    second.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(first)

    ownership = Ownership.acquire(link / "db")
    link.unlink()
    link.symlink_to(second)
    ownership.require_unchanged()

    assert ownership.path == first.resolve() / "db"
    assert files_in(second) == []
    ownership.release()


@is_root
@pytest.mark.parametrize("levels_up", [0, 1])
def test_a_link_of_another_user_on_the_way_is_refused(tmp_path: Path, levels_up: int) -> None:
    real = tmp_path / "real" / "inner"
    real.mkdir(parents=True, mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(real if levels_up == 0 else real.parent)
    os.lchown(link, 12345, 12345)
    path = link / "db" if levels_up == 0 else link / "inner" / "db"

    with pytest.raises(UnsafeStoreError, match="link of another user"):
        Ownership.acquire(path)
    with pytest.raises(UnsafeStoreError, match="link of another user"):
        validate_existing(path)

    assert files_in(real) == []


@is_root
def test_a_directory_of_another_user_is_refused(home: Path) -> None:
    os.chown(home, 12345, 12345)

    with pytest.raises(UnsafeStoreError, match="another user"):
        Ownership.acquire(home / "db")

    assert files_in(home) == []


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises((UnsafeStoreError, UnavailableError)):
        Ownership.acquire(tmp_path / "file" / "db")


def test_a_database_that_was_replaced_after_the_check_is_noticed(home: Path) -> None:
    ownership = Ownership.acquire(home / "db")
    (home / "other").write_bytes(b"")
    (home / "other").chmod(0o600)
    (home / "other").rename(home / "db")

    with pytest.raises(UnsafeStoreError, match="was replaced"):
        ownership.require_unchanged()

    ownership.release()


@pytest.mark.parametrize("name", SIDECARS)
def test_a_file_that_was_opened_to_others_after_the_check_is_noticed(home: Path, name: str) -> None:
    ownership = Ownership.acquire(home / "db")
    (home / name).touch(mode=0o600)
    (home / name).chmod(0o644)

    with pytest.raises(UnsafeStoreError, match=name):
        ownership.require_unchanged()

    ownership.release()


def test_validation_accepts_what_is_missing_and_makes_nothing(tmp_path: Path) -> None:
    validate_existing(tmp_path / "none" / "db")
    (tmp_path / "some").mkdir(mode=0o700)
    validate_existing(tmp_path / "some" / "db")

    assert files_in(tmp_path) == ["some"]
    assert files_in(tmp_path / "some") == []


def test_validation_refuses_what_opening_would_refuse(home: Path) -> None:
    (home / "db-wal").write_bytes(b"")
    (home / "db-wal").chmod(0o640)

    with pytest.raises(UnsafeStoreError, match="db-wal"):
        validate_existing(home / "db")

    assert files_in(home) == ["db-wal"]


def test_the_witness_is_what_was_written_last(home: Path) -> None:
    ownership = Ownership.acquire(home / "db")
    (home / "db").write_bytes(b"content")
    first = ownership.read_witness()
    long = Witness(incarnation="f" * 32, generation=2**62, last_cursor=2**62)
    short = Witness(incarnation="a", generation=1, last_cursor=0)

    ownership.write_witness(long)
    second = ownership.read_witness()
    ownership.write_witness(short)
    ownership.release()
    ownership = Ownership.acquire(home / "db")

    assert (first, second, ownership.read_witness()) == (None, long, short)
    ownership.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"a":1}', b"\xff" * 300])
def test_a_lock_file_of_any_content_is_no_witness(home: Path, content: bytes) -> None:
    (home / "db.lock").write_bytes(content)
    (home / "db.lock").chmod(0o600)

    ownership = Ownership.acquire(home / "db")

    assert ownership.read_witness() is None
    ownership.release()
