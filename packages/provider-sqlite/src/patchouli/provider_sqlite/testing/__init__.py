"""Disks that fail or forget, checks of what is left in a database, counts of what calls cost."""

from __future__ import annotations

from patchouli.provider_sqlite.testing.contents import (
    Contents,
    StoredChange,
    StoredVersion,
    read_contents,
)
from patchouli.provider_sqlite.testing.counting import Cost, Watched
from patchouli.provider_sqlite.testing.faultvfs import (
    DISK_FULL,
    IO_FAILURE,
    DiskCall,
    FaultyDisk,
    ForgetfulDisk,
)
from patchouli.provider_sqlite.testing.index import check_index, drop_index
from patchouli.provider_sqlite.testing.invariants import check_truth

__all__ = [
    "DISK_FULL",
    "IO_FAILURE",
    "Contents",
    "Cost",
    "DiskCall",
    "FaultyDisk",
    "ForgetfulDisk",
    "StoredChange",
    "StoredVersion",
    "Watched",
    "check_index",
    "check_truth",
    "drop_index",
    "read_contents",
]
