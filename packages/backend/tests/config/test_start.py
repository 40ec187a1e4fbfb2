"""What a start loads, and what the package carries."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from patchouli.backend import (
    Selector, ValueValidators, load_policy, load_providers, read_resource,
)
policy = load_policy(read_resource("patchouli.default.json")).policy
load_providers(read_resource("providers.local.json"), policy)
Selector(policy), ValueValidators(policy)
print("jsonschema" in sys.modules, "referencing" in sys.modules)
"""


@pytest.mark.slow
def test_start_without_defects_does_not_load_what_explains_them() -> None:
    """`jsonschema` takes longer to load than everything else that a start needs of this package."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    assert result.stdout.split() == ["False", "False"]
