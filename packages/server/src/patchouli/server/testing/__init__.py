"""Help for tests and benchmarks: a real daemon process, and a peer that speaks raw lines."""

from __future__ import annotations

from patchouli.server.testing.daemon import DaemonProcess
from patchouli.server.testing.peer import Peer

__all__ = ["DaemonProcess", "Peer"]
