"""All classes of the suite at once, for one way to open a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import patchouli.provider_conformance

if TYPE_CHECKING:
    from patchouli.provider_conformance.suite.base import ProviderSuite


def whole_suite(adapter: type) -> dict[str, type[ProviderSuite]]:
    """Return a test class for each class of the suite, by the name that it is to have.

    `adapter` is a class with the fixture `open_provider`, and perhaps others. A test module takes
    the classes over by `globals().update(whole_suite(Adapter))`; a class of the suite that is new
    in a later release is among them then.
    """
    names = [n for n in patchouli.provider_conformance.__all__ if n.endswith("Conformance")]
    return {f"Test{name.removesuffix('Conformance')}": _on(adapter, name) for name in names}


def _on(adapter: type, name: str) -> type[ProviderSuite]:
    suite: type[ProviderSuite] = getattr(patchouli.provider_conformance, name)
    members = {"__module__": adapter.__module__, "__doc__": suite.__doc__}
    return type(f"Test{name.removesuffix('Conformance')}", (adapter, suite), members)
