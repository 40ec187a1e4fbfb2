"""Random histories: the same answers from a database as from the model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from patchouli.provider_conformance import MACHINE_SETTINGS, ProviderMachine
from patchouli.provider_sqlite import SqliteProvider

if TYPE_CHECKING:
    from patchouli.provider import Clock, Provider


class SqliteMachine(ProviderMachine):
    can_abandon = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def open_provider(self, clock: Clock) -> Provider:
        return SqliteProvider(Path(self.folder.name) / "db", clock=clock)

    async def abandon(self, provider: Provider) -> None:
        assert isinstance(provider, SqliteProvider)
        await provider.abandon()

    def discard(self) -> None:
        self.folder.cleanup()


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = MACHINE_SETTINGS
