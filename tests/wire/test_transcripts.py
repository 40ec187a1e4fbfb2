"""Every exchange of `transcripts/`, through the dispatcher in process and over a socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from patchouli.server.testing import InProcessPeer, Served, over_socket, read_transcript

if TYPE_CHECKING:
    from patchouli.server.testing import Transcript
    from patchouli.server.testing.transcripts import Talker

TRANSCRIPTS = [
    read_transcript(path)
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.ndjson"))
]


def played(transcript: Transcript) -> pytest.ParameterSet:
    return pytest.param(
        transcript,
        id=transcript.name,
        marks=[pytest.mark.clause(clause) for clause in transcript.clauses],
    )


@pytest.mark.parametrize("way", ["in process", "socket"])
@pytest.mark.parametrize("transcript", [played(transcript) for transcript in TRANSCRIPTS])
async def test_an_exchange_is_as_written(served: Served, transcript: Transcript, way: str) -> None:
    async def connect() -> Talker:
        if way == "socket":
            return await over_socket(served.endpoint)
        return InProcessPeer(served.daemon)

    await transcript.play(connect)
