"""The machine finds no difference between the model and itself, and finds those that are there."""

from __future__ import annotations

from patchouli.provider import Clock, Provider
from patchouli.provider_conformance import MACHINE_SETTINGS, ProviderMachine
from patchouli.provider_conformance.model import ModelProvider, ModelStorage


class ModelMachine(ProviderMachine):
    can_abandon = True

    def __init__(self) -> None:
        super().__init__()
        self.other = ModelStorage()

    def open_provider(self, clock: Clock) -> Provider:
        return ModelProvider(self.other, clock)

    async def abandon(self, provider: Provider) -> None:
        assert isinstance(provider, ModelProvider)
        provider.abandon()


TestModel = ModelMachine.TestCase
TestModel.settings = MACHINE_SETTINGS
