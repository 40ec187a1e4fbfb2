"""The fixed names and numbers of the wire.

Needs nothing else, so that a command line tool can speak a method without loading a model.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

PROTOCOL_VERSION: Final = 1

MAX_REQUEST_BYTES: Final = 1_048_576  # of one request line, its line feed excluded
MAX_CHUNK_BYTES: Final = 524_288  # of artifact bytes in one message, before Base64
MAX_RESULT_ITEMS: Final = 100  # hits of one page
MAX_COMPACTION_STEP: Final = 10_000
DEFAULT_RESULT_ITEMS: Final = 10  # where `retrieve` names no limit

Capability: TypeAlias = Literal["artifacts", "subscriptions", "subscription-lifecycle"]
CAPABILITIES: Final[tuple[Capability, ...]] = (
    "artifacts",
    "subscriptions",
    "subscription-lifecycle",
)

HANDSHAKE: Final = "patchouli.protocol.handshake@1"
STATUS: Final = "patchouli.control.status@1"
CHECKPOINT: Final = "patchouli.control.checkpoint@1"
COMPACT: Final = "patchouli.control.compact@1"
SHUTDOWN: Final = "patchouli.control.shutdown@1"
CREATE: Final = "patchouli.entity.create@1"
READ: Final = "patchouli.entity.read@1"
RETRIEVE: Final = "patchouli.entity.retrieve@1"
UPDATE: Final = "patchouli.entity.update@1"
DELETE: Final = "patchouli.entity.delete@1"
UPLOAD_BEGIN: Final = "patchouli.artifact.upload.begin@1"
UPLOAD_CHUNK: Final = "patchouli.artifact.upload.chunk@1"
UPLOAD_COMMIT: Final = "patchouli.artifact.upload.commit@1"
DOWNLOAD_CHUNK: Final = "patchouli.artifact.download.chunk@1"
SUBSCRIBE: Final = "patchouli.changes.subscribe@1"
UNSUBSCRIBE: Final = "patchouli.changes.unsubscribe@1"
CHANGE_EVENT: Final = "patchouli.changes.event@1"
SUBSCRIPTION_CLOSED: Final = "patchouli.changes.closed@1"
SUBSCRIPTION_BOUNDARY: Final = "patchouli.changes.boundary@1"
