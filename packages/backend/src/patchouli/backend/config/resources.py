"""The documents that are shipped with the package, and the schemas that references may name.

`documents/` is their one source; `config/` at the root of the repository holds identical copies for
people, and a test of the repository compares them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from patchouli.protocol import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

ResourceName = Literal[
    "patchouli.default.json",
    "patchouli.example.json",
    "patchouli.schema.json",
    "patterns/causal_session.json",
    "patterns/eventual.json",
    "patterns/shared_transaction.json",
    "providers.local.json",
    "providers.schema.json",
]

DEFAULT_POLICY: ResourceName = "patchouli.default.json"
POLICY_SCHEMA: ResourceName = "patchouli.schema.json"
PROVIDERS_LOCAL: ResourceName = "providers.local.json"
PROVIDERS_SCHEMA: ResourceName = "providers.schema.json"


def read_resource(name: ResourceName) -> bytes:
    """Return the shipped document `name`, byte for byte."""
    return files(__name__.rpartition(".")[0]).joinpath("documents", *name.split("/")).read_bytes()


@cache
def configuration_schema(name: ResourceName) -> dict[str, Any]:
    """Return the shipped JSON Schema `name`, parsed. It is shared: do not change it."""
    return json.loads(read_resource(name))


@cache
def builtin_schemas() -> Mapping[str, dict[str, Any]]:
    """Return the schemas of the fact vocabulary by URN. They are shared: do not change them."""
    return schemas()
