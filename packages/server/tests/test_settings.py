from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest
from patchouli.backend import ArtifactLimits, CareSchedule
from patchouli.backend import Limits as EngineLimits
from patchouli.protocol import MAX_CHUNK_BYTES, MAX_NESTING, MAX_REQUEST_BYTES, MAX_RESULT_ITEMS
from patchouli.provider_sqlite import IndexLimits, SqliteLimits
from patchouli.server.assemble import (
    artifact_limits,
    care_schedule,
    engine_limits,
    index_limits,
    store_limits,
)
from patchouli.server.settings import CommandError, Limits, environment_of, resolve


def test_home_is_that_of_the_variable_then_that_of_the_user() -> None:
    named = resolve({"PATCHOULI_HOME": "/srv/hub"})
    of_user = resolve({})

    assert named.home == Path("/srv/hub")
    assert of_user.home == Path.home() / ".patchouli"


def test_everything_else_lies_in_the_home() -> None:
    settings = resolve({"PATCHOULI_HOME": "/srv/hub"})

    assert settings.endpoint == "/srv/hub/run/patchouli.sock"
    assert settings.config == Path("/srv/hub/config.json")
    assert settings.providers == Path("/srv/hub/providers.json")
    assert settings.artifacts == Path("/srv/hub/data/artifacts")
    assert (settings.node_id, settings.cluster_id) == ("local", "local")


def test_option_wins_over_variable_over_default() -> None:
    environ = {"PATCHOULI_NODE_ID": "oak", "PATCHOULI_CLUSTER_ID": "wood"}

    settings = resolve(environ, node_id="ash")

    rows = {row.name: (row.value, row.source) for row in settings.rows()}
    assert rows["node_id"] == ("ash", "option")
    assert rows["cluster_id"] == ("wood", "environment")
    assert rows["max_connections"] == (256, "default")
    assert rows["max_request_bytes"] == (1_048_576, "fixed")


def test_relative_paths_are_those_of_the_working_directory() -> None:
    settings = resolve({}, config="policy.json")

    assert settings.config == Path.cwd() / "policy.json"


def test_a_bound_can_be_set_in_the_environment() -> None:
    settings = resolve({"PATCHOULI_MAX_CONNECTIONS": "3", "PATCHOULI_DRAIN_MS": "0"})

    assert settings.limits.max_connections == 3
    assert settings.limits.drain_ms == 0


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", "٣"])
def test_a_bound_must_be_a_number_in_its_range(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        resolve({"PATCHOULI_MAX_CONNECTIONS": text})

    assert "PATCHOULI_MAX_CONNECTIONS" in str(caught.value)
    assert "1 or more" in str(caught.value)


def test_an_answer_to_a_mutation_has_room_whatever_is_set() -> None:
    assert resolve({"PATCHOULI_MAX_RESPONSE_BYTES": "4194304"}).limits.max_response_bytes == 4194304
    with pytest.raises(CommandError):
        resolve({"PATCHOULI_MAX_RESPONSE_BYTES": "4194303"})


def test_the_environment_of_a_home_sets_nothing_else() -> None:
    environ = {
        "PATH": "/bin",
        "PATCHOULI_HOME": "/mine",
        "PATCHOULI_CONFIG": "/mine/policy.json",
        "PATCHOULI_NODE_ID": "oak",
        "PATCHOULI_MAX_CONNECTIONS": "3",
        "PATCHOULI_VERIFY": "1",
    }

    assert environment_of(Path("/srv/hub"), environ) == {
        "PATH": "/bin",
        "PATCHOULI_HOME": "/srv/hub",
        "PATCHOULI_VERIFY": "1",
    }


def test_a_bound_of_the_protocol_cannot_be_set() -> None:
    with pytest.raises(CommandError) as caught:
        resolve({"PATCHOULI_MAX_REQUEST_BYTES": "10"})

    assert "the protocol fixes" in str(caught.value)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(CommandError):
        resolve({}, node_id=" ")


def test_every_bound_says_its_unit_and_what_happens_beyond() -> None:
    rows = {row.name: row for row in resolve({}).rows()}

    for bound in fields(Limits):
        assert rows[bound.name].unit
        assert rows[bound.name].overflow


def test_defaults_are_those_of_the_packages_that_keep_the_bounds() -> None:
    assert engine_limits(Limits()) == EngineLimits()
    assert artifact_limits(Limits()) == ArtifactLimits()
    assert store_limits(Limits()) == SqliteLimits()
    assert index_limits(Limits()) == IndexLimits()
    assert care_schedule(Limits()) == CareSchedule()


def test_every_bound_of_the_engine_and_of_uploads_can_be_set() -> None:
    """Each bound of the daemon has a value of its own, and each of these shows one of them."""
    numbers = {bound.name: 10_000 + place for place, bound in enumerate(fields(Limits))}
    limits = Limits(**numbers)

    taken = [
        *engine_limits(limits).model_dump().values(),
        *asdict(artifact_limits(limits)).values(),
        *asdict(care_schedule(limits)).values(),
    ]

    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(numbers.values())


def test_fixed_bounds_are_those_of_the_protocol() -> None:
    limits = Limits()

    assert limits.max_request_bytes == MAX_REQUEST_BYTES
    assert limits.max_json_nesting == MAX_NESTING
    assert limits.max_result_items == MAX_RESULT_ITEMS
    assert limits.max_artifact_chunk_bytes == MAX_CHUNK_BYTES
