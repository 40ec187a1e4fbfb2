"""Images in memory, named by what they hold."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, cast

from patchouli.harness.errors import AttachmentError
from patchouli.harness.jsonvalue import snapshot
from patchouli.harness.messages import ImageRef, read_only
from patchouli.harness.ports import Attachments, StoredImage

if TYPE_CHECKING:
    from patchouli.harness.signals import CancelSignal


class MemoryAttachments(Attachments):
    """The service ``attachments``."""

    def __init__(self) -> None:
        self._images: dict[str, StoredImage] = {}

    def add_image(
        self,
        data: bytes,
        *,
        media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"],
        width: int,
        height: int,
        name: str | None = None,
    ) -> ImageRef:
        """Keep an image and return its reference, to be put into an image block."""
        ref: dict[str, object] = {
            "attachmentId": f"img-{hashlib.sha256(data).hexdigest()}",
            "mediaType": media_type,
            "bytes": len(data),
            "width": width,
            "height": height,
        }
        if name is not None:
            ref["name"] = name
        canonical = cast("ImageRef", read_only(snapshot(ref)))
        self._images[canonical["attachmentId"]] = StoredImage(ref=canonical, data=data)
        return canonical

    async def read_image(self, ref: ImageRef, *, signal: CancelSignal | None = None) -> StoredImage:
        """Return the image that `ref` names.

        Raises:
            AttachmentError: ``ATTACHMENT_NOT_FOUND``, or ``ATTACHMENT_MISMATCH`` if something but
                the name differs.
        """
        if signal is not None:
            signal.raise_if_cancelled()
        image = self._images.get(ref["attachmentId"])
        if image is None:
            raise AttachmentError("ATTACHMENT_NOT_FOUND", f"no image {ref['attachmentId']!r}")
        if any(ref[key] != image.ref[key] for key in ("mediaType", "bytes", "width", "height")):
            raise AttachmentError(
                "ATTACHMENT_MISMATCH", f"{ref['attachmentId']!r} is another image"
            )
        return image
