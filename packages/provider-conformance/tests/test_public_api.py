"""What importing the package does and does not do."""

from __future__ import annotations

import subprocess
import sys

import patchouli.provider_conformance as package
import pytest


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Telepathy"):
        getattr(package, "Telepathy")  # noqa: B009 - a name that no type checker would let pass


def test_importing_the_plugin_loads_nothing_of_the_suite() -> None:
    """pytest loads the plugin in every project that has the distribution installed."""
    code = """
import sys
import patchouli.provider_conformance.plugin
print(sorted(m for m in sys.modules if m.startswith(("patchouli", "hypothesis"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(
        ["patchouli", "patchouli.provider_conformance", "patchouli.provider_conformance.plugin"]
    )
