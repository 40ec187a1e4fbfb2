"""The model passes the suite that it is the oracle of, whatever it claims."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from patchouli.provider import Capabilities, Provider
from patchouli.provider_conformance import (
    EVERYTHING,
    Abandon,
    EntityConformance,
    ModelProvider,
    ModelStorage,
    OpenProvider,
    RefusalConformance,
    SessionConformance,
    whole_suite,
)

LEAST = Capabilities(authority=True, change_stream=True, retrieval=True)
CLAIMS = [f.name for f in fields(Capabilities) if getattr(EVERYTHING, f.name)]


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


class ModestModel(Model):
    """The model with the claims that every engine needs, and no other."""

    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        storage = ModelStorage()
        return lambda clock: ModelProvider(storage, clock, capabilities=LEAST)


class ModelWithoutOne(Model):
    """The model with all claims but one, each in turn."""

    @pytest.fixture(params=[claim for claim in CLAIMS if not getattr(LEAST, claim)])
    def open_provider(self, request: pytest.FixtureRequest) -> OpenProvider:
        storage = ModelStorage()
        claims = replace(EVERYTHING, **{request.param: False})
        return lambda clock: ModelProvider(storage, clock, capabilities=claims)


globals().update(whole_suite(Model))


class TestEntityOfTheModestModel(ModestModel, EntityConformance): ...


class TestRefusal(ModestModel, RefusalConformance): ...


class TestRefusalOfOne(ModelWithoutOne, RefusalConformance): ...


class TestSessionWithoutOne(ModelWithoutOne, SessionConformance): ...


def test_the_whole_suite_has_a_class_for_each_of_its_parts() -> None:
    classes = whole_suite(Model)

    assert len(classes) > 30
    assert classes["TestEntity"].__mro__[1:3] == (Model, EntityConformance)
