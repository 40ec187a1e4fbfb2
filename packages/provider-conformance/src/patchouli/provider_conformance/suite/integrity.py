"""What contradicts itself or the store, and is therefore not kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    MisuseError,
    ProviderError,
)
from patchouli.provider_conformance.asking import (
    committed,
    head_ids,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    OTHER_SCOPE,
    commit,
    create,
    entity,
    tombstone,
    update,
    version,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Commit, Provider

A, B = entity("a"), entity("b")
A_ELSEWHERE = entity("a", scope=OTHER_SCOPE)


# Any: members of a commit, of whatever type.
def with_members(good: Commit, wrong: dict[str, Any]) -> Commit:
    """Return `good` with some members replaced by contradictory ones."""
    return replace(good, **wrong)


class IntegrityConformance(ProviderSuite):
    """A refused commit leaves nothing, and the store as usable as before."""

    async def test_ids_of_versions_may_repeat_in_other_entities_only(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "v1"))

        async with unchanged(provider, A):
            with pytest.raises(MisuseError):
                await provider.commit(
                    commit(A, version("v1"), expected=["v1"], causal_token=CausalToken("other"))
                )

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param({"head_versions": ()}, id="no head"),
            pytest.param({"head_versions": version_ids(["v2", "v2"])}, id="a repeated head"),
            pytest.param({"head_versions": version_ids(["v2", "v9"])}, id="an unknown head"),
            pytest.param({"head_versions": version_ids(["v0"])}, id="a superseded head"),
            pytest.param(
                {"new_versions": (version("v2", parents=["v3"]), version("v3"))},
                id="a parent after its child",
            ),
            pytest.param({"new_versions": (version("v2"), version("v2"))}, id="a repeated version"),
            pytest.param(
                {"new_versions": (version("v2", parents=["v9"]),)}, id="an unknown parent"
            ),
            pytest.param(
                {"new_versions": (version("v2", parents=["foreign"]),)},
                id="a parent of another entity",
            ),
            pytest.param({"new_versions": (version("v2", parents=["v2"]),)}, id="its own parent"),
            pytest.param(
                {"new_versions": (replace(version("v2"), value_json=None),)},
                id="active without a value",
            ),
            pytest.param(
                {"new_versions": (replace(tombstone("v2"), value_json="{}"),)},
                id="deleted with a value",
            ),
            pytest.param({"causal_token": CausalToken("token-v0")}, id="a used token"),
            pytest.param({"causal_token": CausalToken("token-far")}, id="a token of another scope"),
        ],
    )
    async def test_a_contradiction_is_refused_and_leaves_nothing(
        self, provider: Provider, wrong: dict[str, object]
    ) -> None:
        await committed(provider, create(A, "v0"))
        await committed(provider, update(A, "v0", "v1"))
        await committed(provider, create(B, "foreign"))
        await committed(provider, create(A_ELSEWHERE, "far"))
        good = update(A, "v1", "v2")

        async with unchanged(provider, A, B, A_ELSEWHERE):
            with pytest.raises(MisuseError):
                await provider.commit(with_members(good, wrong))

        await committed(provider, good)
        assert await head_ids(provider, A) == ["v2"]

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param({"recorded_at_unix_ms": INTEGER_MAX + 1}, id="time of the change"),
            pytest.param(
                {"new_versions": (version("v2", recorded_at_unix_ms=INTEGER_MAX + 1),)},
                id="time of the version",
            ),
            pytest.param(
                {"new_versions": (replace(version("v2"), value_json="{"),)}, id="half a value"
            ),
            pytest.param(
                {"new_versions": (replace(version("v2"), value_json=""),)}, id="an empty value"
            ),
        ],
    )
    async def test_what_cannot_be_stored_is_refused_and_leaves_nothing(
        self, provider: Provider, wrong: dict[str, object]
    ) -> None:
        await committed(provider, create(A, "v1"))

        async with unchanged(provider, A):
            with pytest.raises(ProviderError) as refused:
                await provider.commit(with_members(update(A, "v1", "v2"), wrong))

        assert refused.value.reason == "internal"
