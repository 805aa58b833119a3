"""Topics, groups and receipt handles in client requests.

A receipt handle is that of `remoting.pop_headers` plus a ninth field with the message's position in
the broker's log, as at Apache's proxies. So any proxy can find the message of a handle.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from raftmq.remoting.errors import HeaderError
from raftmq.remoting.fields import parse_integer
from raftmq.remoting.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    pop_retry_topic,
    topic_name_problem,
)
from raftmq.remoting.pop_headers import HANDLE_SIZE_MAX, Handle

from .protocol.messaging_pb2 import Code, Resource
from .status_codes import StatusError

SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")  # of Apache's own topics and groups


def ms_of(moment: Timestamp | Duration) -> int:
    """Return a timestamp or a duration in ms. Raises StatusError for invalid values."""
    try:
        return int(moment.ToMilliseconds())
    except (ValueError, OverflowError) as error:
        raise StatusError(Code.BAD_REQUEST, f"not a time: {error}") from error


def wrapped(resource: Resource) -> str:
    """Return a topic's or a group's broker-side name, with its namespace. Dead-letter and retry
    topics hold the namespace after their prefix; system topics and groups have no namespace."""
    space, name = resource.resource_namespace, resource.name
    derived, own = _divided(name)
    if not space or not own or _is_system(name) or own.startswith(f"{space}%"):
        return name
    return f"{derived}{space}%{own}"


def resource_of(name: str, space: str) -> Resource:
    derived, own = _divided(name)
    shown = derived + own.removeprefix(f"{space}%") if space else name
    return Resource(resource_namespace=space, name=shown)


def _divided(name: str) -> tuple[str, str]:
    """Split a retry or dead-letter topic into its prefix and its group."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def topic_of(resource: Resource) -> str:
    """Return the topic's name. Raises StatusError."""
    name = wrapped(resource)
    if problem := topic_name_problem(name):
        raise StatusError(Code.ILLEGAL_TOPIC, problem)
    if _is_system(name):
        raise StatusError(
            Code.ILLEGAL_TOPIC, f"{name} is a system topic, which clients may not use"
        )
    return name


def group_of(resource: Resource) -> str:
    """Return the consumer group's name. Raises StatusError."""
    name = wrapped(resource)
    if problem := topic_name_problem(name):
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, problem.replace("topic", "group"))
    if _is_system(name):
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, f"{name} is a system group")
    return name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIXES)


class Receipt(NamedTuple):
    """A receipt handle: the broker's handle and the message's log position, or -1."""

    handle: Handle
    position: int

    def encode(self) -> str:
        return f"{self.handle.encode()} {self.position}"

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """Parse a handle. Raises StatusError."""
        if len(text) > HANDLE_SIZE_MAX:
            message = f"the receipt handle has more than {HANDLE_SIZE_MAX} characters"
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, message)
        try:
            handle = Handle.decode(text)
            parts = text.split(" ")
            position = parse_integer(parts[8], "handle") if len(parts) > 8 else -1
        except HeaderError as error:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, str(error)) from error
        if handle.offset < 0:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "the receipt handle has no offset")
        return cls(handle, position)

    def stored_in(self, topic: str, group: str) -> str:
        """Return the topic that stores the message, which may be a retry topic."""
        return pop_retry_topic(topic, group) if self.handle.retry else topic
