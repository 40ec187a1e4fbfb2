"""Local persistence: a provider over one SQLite database."""

from __future__ import annotations

from patchouli.provider_sqlite.archive import Archive
from patchouli.provider_sqlite.connection import Disk
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.limits import SqliteLimits
from patchouli.provider_sqlite.ownership import validate_existing
from patchouli.provider_sqlite.provider import SqliteProvider

__all__ = [
    "Archive",
    "Disk",
    "IndexLimits",
    "SqliteLimits",
    "SqliteProvider",
    "validate_existing",
]
