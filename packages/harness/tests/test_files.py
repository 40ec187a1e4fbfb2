"""The local disk: places, containment, and reads that cannot be led astray."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from patchouli.harness import CancelSource, FsError, FsTarget
from patchouli.harness.reference import LocalFileSystem


@pytest.fixture
def files() -> LocalFileSystem:
    return LocalFileSystem()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace `a`, a neighbour `ab` and links between them."""
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "in.txt").write_bytes(b"inside")
    (tmp_path / "ab" / "out.txt").write_bytes(b"outside")
    (tmp_path / "a" / "sub").mkdir()
    (tmp_path / "a" / "to-out").symlink_to(tmp_path / "ab" / "out.txt")
    (tmp_path / "ab" / "to-in").symlink_to(tmp_path / "a" / "in.txt")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a" / "loop")
    os.mkfifo(tmp_path / "a" / "pipe")
    return tmp_path / "a"


async def test_one_file_has_one_key_by_any_path(files: LocalFileSystem, root: Path) -> None:
    plain = await files.resolve("in.txt", cwd=str(root))
    around = await files.resolve("sub/../../a/./in.txt", cwd=str(root))
    linked = await files.resolve("../ab/to-in", cwd=str(root))

    assert plain.key == around.key == linked.key
    assert plain.display_path == "in.txt"


@pytest.mark.parametrize("cwd", [None, "", "a", "./a"])
async def test_the_directory_of_the_process_is_no_place_to_start(
    files: LocalFileSystem, cwd: str | None
) -> None:
    for look in (files.resolve, files.lstat):
        with pytest.raises(FsError, match="relative to nothing") as caught:
            await look("in.txt", cwd=cwd)
        assert caught.value.code == "FS_NOT_FOUND"


@pytest.mark.parametrize("ending", ["", "/", "//", "/."])
async def test_lstat_follows_no_link_however_its_path_ends(
    files: LocalFileSystem, root: Path, ending: str
) -> None:
    above = str(root.parent)
    (root.parent / "link").symlink_to(root)

    for path, cwd in ((f"{above}/link{ending}", None), (f"link{ending}", above)):
        found = await files.lstat(path, cwd=cwd)

        assert found is not None
        assert found.type == "symlink"


async def test_containment_is_of_real_places(files: LocalFileSystem, root: Path) -> None:
    inside = await files.resolve(str(root))

    async def contained(path: str) -> bool:
        return files.contains(inside, await files.resolve(path, cwd=str(root)))

    assert await contained(".")
    assert await contained("sub")
    assert await contained("not-there-yet")
    assert await contained("../ab/to-in")
    assert not await contained("to-out")
    assert not await contained("../ab/out.txt")
    assert not await contained("..")


async def test_stat_follows_and_lstat_does_not(files: LocalFileSystem, root: Path) -> None:
    async def seen(path: str) -> tuple[object, object]:
        target = await files.resolve(path, cwd=str(root))
        followed = await files.stat(target)
        itself = await files.lstat(path, cwd=str(root))
        return followed and (followed.type, followed.size), itself and (itself.type, itself.size)

    assert await seen("in.txt") == (("file", 6), ("file", 6))
    assert await seen("sub") == (("directory", None), ("directory", None))
    assert await seen("to-out") == (("file", 7), ("symlink", None))
    assert await seen("pipe") == (("other", None), ("other", None))
    assert await seen("missing") == (None, None)


async def test_a_version_changes_with_the_content_though_size_and_time_are_restored(
    files: LocalFileSystem, root: Path
) -> None:
    target = await files.resolve("in.txt", cwd=str(root))
    before = os.stat(root / "in.txt")
    first = await files.stat(target)
    again = await files.stat(target)

    (root / "in.txt").write_bytes(b"INSIDE")
    os.utime(root / "in.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = await files.stat(target)

    assert first == again
    assert first is not None
    assert changed is not None
    assert changed.version != first.version


async def test_a_directory_lists_its_names_in_order(files: LocalFileSystem, root: Path) -> None:
    entries = await files.list_dir(await files.resolve(str(root)))

    assert [(entry.name, entry.type) for entry in entries] == [
        ("in.txt", "file"),
        ("loop", "symlink"),
        ("pipe", "other"),
        ("sub", "directory"),
        ("to-out", "symlink"),
    ]


async def test_a_read_is_whole_or_refused(files: LocalFileSystem, root: Path) -> None:
    target = await files.resolve("in.txt", cwd=str(root))

    assert await files.read_bytes(target, 6) == b"inside"
    for too_few in (5, 0, -1, -2):
        with pytest.raises(FsError) as caught:
            await files.read_bytes(target, too_few)
        assert caught.value.code == "FS_TOO_LARGE"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", "FS_NOT_FOUND"),
        ("in.txt/below", "FS_NOT_DIRECTORY"),
        ("sub", "FS_NOT_REGULAR_FILE"),
        ("pipe", "FS_NOT_REGULAR_FILE"),
        ("loop", "FS_NOT_REGULAR_FILE"),
    ],
)
async def test_what_is_no_regular_file_is_not_read(
    files: LocalFileSystem, root: Path, path: str, code: str
) -> None:
    target = await files.resolve(path, cwd=str(root))

    with pytest.raises(FsError) as caught:
        await files.read_bytes(target, 10)

    assert caught.value.code == code


async def test_a_link_that_takes_the_place_of_a_file_is_not_followed(
    files: LocalFileSystem, root: Path
) -> None:
    target = await files.resolve("in.txt", cwd=str(root))
    (root / "in.txt").unlink()
    (root / "in.txt").symlink_to(root.parent / "ab" / "out.txt")

    with pytest.raises(FsError) as caught:
        await files.read_bytes(target, 100)

    assert caught.value.code == "FS_NOT_REGULAR_FILE"


@pytest.mark.parametrize(("path", "code"), [("in.txt", "FS_NOT_DIRECTORY"), ("x", "FS_NOT_FOUND")])
async def test_only_a_directory_is_listed(
    files: LocalFileSystem, root: Path, path: str, code: str
) -> None:
    with pytest.raises(FsError) as caught:
        await files.list_dir(await files.resolve(path, cwd=str(root)))

    assert caught.value.code == code


async def test_a_path_with_a_zero_and_a_fired_signal_are_refused(
    files: LocalFileSystem, root: Path
) -> None:
    source = CancelSource()
    reason = ValueError("enough")
    source.cancel(reason)

    with pytest.raises(FsError) as zero:
        await files.stat(FsTarget(key=f"{root}/\0", display_path="zero"))
    with pytest.raises(FsError) as aborted:
        await files.resolve(str(root), signal=source.signal)

    assert (zero.value.code, aborted.value.code) == ("FS_NOT_FOUND", "FS_ABORTED")
    assert aborted.value.__cause__ is reason
