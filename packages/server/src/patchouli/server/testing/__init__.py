"""Help for tests and benchmarks: real daemons, a peer that speaks raw lines, a home of memos."""

from __future__ import annotations

from patchouli.server.testing.artifacts import ARTIFACT_METADATA, beginning, upload
from patchouli.server.testing.daemon import DaemonProcess
from patchouli.server.testing.inside import Served, serving, settings_of
from patchouli.server.testing.memos import META, create_memo_home, memo, params, ref, revised
from patchouli.server.testing.peer import Peer
from patchouli.server.testing.transcripts import (
    InProcessPeer,
    Transcript,
    over_socket,
    read_transcript,
)

__all__ = [
    "ARTIFACT_METADATA",
    "META",
    "DaemonProcess",
    "InProcessPeer",
    "Peer",
    "Served",
    "Transcript",
    "beginning",
    "create_memo_home",
    "memo",
    "over_socket",
    "params",
    "read_transcript",
    "ref",
    "revised",
    "serving",
    "settings_of",
    "upload",
]
