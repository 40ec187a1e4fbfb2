"""The model passes the suite that it is the oracle of."""

from __future__ import annotations

import pytest
from patchouli.provider import Provider
from patchouli.provider_conformance.model import ModelProvider, ModelStorage
from patchouli.provider_conformance.suite.base import Abandon, OpenProvider
from patchouli.provider_conformance.suite.cancellation import *
from patchouli.provider_conformance.suite.changes import *
from patchouli.provider_conformance.suite.consistency import *
from patchouli.provider_conformance.suite.deadlines import *
from patchouli.provider_conformance.suite.divergence import *
from patchouli.provider_conformance.suite.entities import *
from patchouli.provider_conformance.suite.heads import *
from patchouli.provider_conformance.suite.lifecycle import *
from patchouli.provider_conformance.suite.matching import *
from patchouli.provider_conformance.suite.ordering import *
from patchouli.provider_conformance.suite.refusals import *
from patchouli.provider_conformance.suite.retrieval import *
from patchouli.provider_conformance.suite.waiting import *


class Model:
    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        storage = ModelStorage()
        return lambda clock: ModelProvider(storage, clock)

    @pytest.fixture
    def abandon(self) -> Abandon:
        async def abandon(provider: Provider) -> None:
            assert isinstance(provider, ModelProvider)
            provider.abandon()

        return abandon


for n, c in list(globals().items()):
    if n.endswith("Conformance"):
        globals()["Test" + n] = type("Test" + n, (Model, c), {})
