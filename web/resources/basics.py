"""Names, ids and other value types of resources."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NAME_PATTERN = "^[%|a-zA-Z0-9_-]+$"
BODY_TEXT_MAX = 900 * 1024  # characters of a message to send; a request may have 1 MiB
MESSAGES_MAX = 256  # per answer

Name = Annotated[str, Meta(pattern=NAME_PATTERN, min_length=1, max_length=255)]
QueueCount = Annotated[int, Meta(ge=0, le=65_536)]
QueueId = Annotated[int, Meta(ge=0, le=65_535)]
MessageId = Annotated[
    str,
    Meta(
        pattern="^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$",
        description="offsetMsgId: store host and CommitLog offset, in hexadecimal digits.",
    ),
]
Base64 = Annotated[
    str,
    Meta(
        max_length=BODY_TEXT_MAX,
        pattern="^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    ),
]
PropertyText = Annotated[str, Meta(min_length=1, max_length=4_096, pattern="^[^\x01\x02]+$")]
NodeName = Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$", max_length=64)]
