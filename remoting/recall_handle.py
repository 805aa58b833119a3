"""The recall handle of a timer message, for RECALL_MESSAGE (370).

    base64url("v1" SP topic SP broker name SP time SP UNIQ_KEY), with padding

The time is in ms since the epoch, in the message's time slot. Pure, without I/O.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

VERSION = "v1"
SIZE_MAX = 2_048  # characters; a topic has at most 255, a key hardly more than 100


class RecallHandle(NamedTuple):
    """A decoded recall handle."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        parts = (VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_key)
        return urlsafe_b64encode(" ".join(parts).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Parse a handle. Raises ValueError."""
        if len(text) > SIZE_MAX:
            raise ValueError("the recall handle is too long")
        parts = urlsafe_b64decode(text.encode()).decode().split(" ")
        if len(parts) != 5 or parts[0] != VERSION:
            raise ValueError("the recall handle is invalid")
        return cls(parts[1], parts[2], int(parts[3]), parts[4])
