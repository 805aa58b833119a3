"""Splits many messages into batches that a broker accepts. Pure.

A batch is one request for one topic; its size is that of its items, properties included. The
broker's limits are its maxMessageSize, 4 MiB by default, and COUNT_MAX messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import InvalidMessage
from ..message import BODY_SIZE_BYTES_MAX, Message
from .send_frame import encoded_properties

SPLIT_SIZE_BYTES = 1024 * 1024
COUNT_MAX = 8_192  # a broker refuses a batch of more
_ITEM_BYTES = 22  # five int32 and an int16 around body and properties
_KEY = "0" * 32


def batch_item_size(message: Message) -> int:
    """Return how many bytes the message takes in a batch. Raises InvalidMessage."""
    properties = encoded_properties(message, message.unique_key or _KEY)
    return _ITEM_BYTES + len(message.body) + len(properties.encode())


def split_batch(
    messages: Sequence[Message], size_bytes_max: int = SPLIT_SIZE_BYTES
) -> Iterator[list[Message]]:
    """Split messages into batches of at most `size_bytes_max`, in order. Raises InvalidMessage if
    one message alone is larger, or if the bound is above 4 MiB."""
    if size_bytes_max > BODY_SIZE_BYTES_MAX:
        raise InvalidMessage(f"batches of {size_bytes_max} bytes are over {BODY_SIZE_BYTES_MAX}")
    batch: list[Message] = []
    batch_bytes = 0
    for message in messages:
        size = batch_item_size(message)
        if size > size_bytes_max:
            raise InvalidMessage(f"a message of {size} bytes is over {size_bytes_max}")
        if batch and (batch_bytes + size > size_bytes_max or len(batch) >= COUNT_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += size
    if batch:
        yield batch
