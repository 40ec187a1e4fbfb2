"""Disks that fail and disks that forget, for tests of anything that keeps its data in SQLite."""

from __future__ import annotations

from patchouli.provider_sqlite.testing.faultvfs import (
    DISK_FULL,
    IO_FAILURE,
    DiskCall,
    FaultyDisk,
    ForgetfulDisk,
)
from patchouli.provider_sqlite.testing.invariants import check_truth

__all__ = ["DISK_FULL", "IO_FAILURE", "DiskCall", "FaultyDisk", "ForgetfulDisk", "check_truth"]
