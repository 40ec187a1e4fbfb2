"""What a provider can do, said before it is started and never changed afterwards."""

from __future__ import annotations

from dataclasses import fields

from patchouli.provider.errors import UnsupportedError
from patchouli.provider.record import record


@record
class Capabilities:
    """Ten claims. `authority`, `change_stream` and `retrieval` are needed by every engine.

    An operation or a plan member whose claim is False is refused with `UnsupportedError`, never
    answered by something weaker.
    """

    authority: bool = False
    replica: bool = False
    change_stream: bool = False
    retrieval: bool = False
    idempotency: bool = False
    work_units: bool = False
    causal_reads: bool = False
    monotonic_reads: bool = False
    read_your_writes: bool = False
    linearizable_reads: bool = False

    def both(self, other: Capabilities) -> Capabilities:
        """Return what this provider and `other` can both do."""
        return Capabilities(
            **{f.name: getattr(self, f.name) and getattr(other, f.name) for f in fields(self)}
        )

    def require(self, name: str, *, provider: str, operation: str) -> None:
        """Return if the claim `name` is made.

        Raises:
            UnsupportedError: It is not.
        """
        if not getattr(self, name):
            raise UnsupportedError(provider, operation, f"it does not offer {name}")
