"""Responses to senders, with the status of a stored message or an error.

These run while frames are applied, on data that clients control. So an exception closes only the
connection concerned (broker.error_isolation). `AnswerFormat` formats the header of SEND_OK from a
JSON template with five values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import orjson

from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import MQ_VERSION, NOT_STORED, ResponseCode
from raftmq.remoting.command import JSON, RESPONSE_FLAG, RemotingCommand
from raftmq.remoting.headers import REGION

from ..config import BrokerConfig
from ..error_isolation import Contained
from ..errors import NOT_LEADER, OutcomeUnknown, Refused
from .callbacks import STORED_CODES, Done
from .internal_producer import InternalSend
from .queue import OWN, Connection, Sender, Stored

_PREFIX = struct.Struct(">ii")
_SIZES = 1024  # larger headers are packed when needed
_PREFIXES = [_PREFIX.pack(size + 4, size) for size in range(_SIZES)]
Writes = dict[Connection, list[bytes]]  # the response frames of a single write per connection


class Answers:
    """Sends the responses of a send path. `results` counts them by code and error tag."""

    def __init__(
        self,
        config: BrokerConfig,
        store_host: bytes,
        leader_address: Callable[[], str],
        contained: Contained,
    ) -> None:
        """`leader_address()` is "" if the leader is unknown."""
        self._formats = {
            int(code): AnswerFormat(config.trace_on, store_host, int(code)) for code in STORED_CODES
        }
        self._leader_address = leader_address
        self._contained = contained
        self.results: dict[tuple[int, str], int] = {}

    def stored(self, stored: Stored, code: int, writes: Writes) -> int:
        """Add the responses to all sends of a group to `writes`. Returns the number of messages."""
        formats = self._formats[code]
        plain = formats.plain
        group, positions, offsets = stored.group, stored.positions, stored.offsets
        records = group.records
        others = group.answered_queues
        at, handle = 0, ""
        last: Connection | None = None
        chunks: list[bytes] = []  # of `last`
        for sender, unique_key, count in group.replies:
            connection, opaque, one_way, serialize_type = sender
            if not one_way:
                queue_id = records[at][0].queue_id
                if others is not None:
                    queue_id, handle = others.get(at, (queue_id, ""))
                try:
                    if serialize_type == JSON and count == 1 and not handle:
                        data = plain(opaque, positions[at], queue_id, offsets[at], unique_key)
                    else:
                        data = formats.any(
                            (opaque, serialize_type),
                            positions[at : at + count],
                            queue_id,
                            offsets[at],
                            unique_key,
                            handle,
                        )
                except Exception as error:
                    self._contained.failed("answer", error, connection)
                else:
                    if connection is not last:  # usually several sends of a connection
                        last, chunks = connection, writes.setdefault(connection, [])
                    chunks.append(data)
            at += count
        key = (code, "")
        self.results[key] = self.results.get(key, 0) + len(group.replies) - len(group.dones)
        return at

    def repeated(
        self, sender: Sender, code: int, message_id: str, queue_id: int, offset: int, key: str
    ) -> None:
        """Respond to a repeated idempotent send with the location of the first."""
        connection, opaque, one_way, serialize_type = sender
        if one_way:
            return
        try:
            fields = message_id, queue_id, offset, key
            connection.write(self._formats[code].success_in(opaque, *fields, serialize_type))
        except Exception as error:
            self._contained.failed("answer", error, connection)

    def write(self, writes: Writes) -> None:
        for connection, chunks in writes.items():
            try:
                connection.write_many(chunks)
            except Exception as error:
                self._contained.failed("answer", error, connection)

    def refuse(self, sender: Sender, refusal: Refused | OutcomeUnknown) -> None:
        """Respond to a send that is not, or may not be, stored."""
        if sender is OWN:
            return
        connection, opaque, one_way, serialize_type = sender
        key = (refusal.code, refusal.tag)
        self.results[key] = self.results.get(key, 0) + 1
        if isinstance(connection, InternalSend):
            connection.refused(refusal)
            return
        if one_way:
            return
        ext: dict[str, str] = {}
        if refusal.tag == NOT_LEADER:
            leader = self._leader_address()
            if leader:
                ext["leaderAddr"] = leader
        elif refusal.code == ResponseCode.SYSTEM_ERROR and isinstance(refusal, Refused):
            ext[NOT_STORED] = "true"  # with this code alone, the message may be stored
        response = RemotingCommand(refusal.code, opaque, RESPONSE_FLAG, refusal.remark, ext)
        try:
            connection.write(encode_command(response, serialize_type))
        except Exception as error:
            self._contained.failed("answer", error, connection)

    def notify(self, dones: Iterable[Done], error: Exception | None) -> None:
        for done in dones:
            self._contained.run("told_of_store", partial(done, error))


class AnswerFormat:
    """Formats SEND_OK, or the status `code`, for stored sends. Built once."""

    __slots__ = ("_code", "_end", "_ext", "_middle", "_plain", "_start", "host")

    def __init__(self, trace_on: bool, store_host: bytes, code: int = 0) -> None:
        fields = f'"MSG_REGION":"{REGION}","TRACE_ON":"{"true" if trace_on else "false"}"'
        self._code = code
        self._ext = {"MSG_REGION": REGION, "TRACE_ON": "true" if trace_on else "false"}
        self.host = store_host.hex().upper()  # an offsetMsgId is this and 16 hex digits of offset
        self._start = f'{{"code":{code},"extFields":{{{fields},"msgId":"'
        self._middle = '},"flag":1,"language":"PYTHON","opaque":'
        self._end = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
        start, middle, end = (
            text.encode().replace(b"%", b"%%") for text in (self._start, self._middle, self._end)
        )
        self._plain = (
            start + self.host.encode() + b'%016X","queueId":"%d","queueOffset":"%d",'
            b'"transactionId":"%b"' + middle + b"%d" + end
        )

    def plain(
        self, opaque: int, position: int, queue_id: int, queue_offset: int, unique_key: str
    ) -> bytes:
        """Format `success` for a message by its position, as nearly all responses need it."""
        key = unique_key.encode()
        if not key.isalnum():  # it may need JSON escapes
            ids = f"{self.host}{position:016X}"
            return self.success(opaque, ids, queue_id, queue_offset, unique_key)
        header = self._plain % (position, queue_id, queue_offset, key, opaque)
        size = len(header)
        return (_PREFIXES[size] if size < _SIZES else _PREFIX.pack(size + 4, size)) + header

    def success(
        self, opaque: int, message_ids: str, queue_id: int, queue_offset: int, unique_key: str
    ) -> bytes:
        """Format a complete response frame with a JSON header and no body."""
        if unique_key.isalnum():  # it needs no JSON escapes
            transaction = f',"transactionId":"{unique_key}"'
        else:
            transaction = f',"transactionId":{_quoted(unique_key)}' if unique_key else ""
        header = (
            f'{self._start}{message_ids}","queueId":"{queue_id}",'
            f'"queueOffset":"{queue_offset}"{transaction}{self._middle}{opaque}{self._end}'
        ).encode()
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header

    def any(
        self,
        request: tuple[int, int],
        positions: Sequence[int],
        queue_id: int,
        queue_offset: int,
        unique_key: str,
        recall_handle: str = "",
    ) -> bytes:
        """Format the response to a send or batch. `request` is opaque and header codec; `positions`
        are the physical offsets of its messages."""
        opaque, serialize_type = request
        ids = ",".join([f"{self.host}{position:016X}" for position in positions])
        if serialize_type == JSON and not recall_handle:
            return self.success(opaque, ids, queue_id, queue_offset, unique_key)
        return self.success_in(
            opaque, ids, queue_id, queue_offset, unique_key, serialize_type, recall_handle
        )

    def success_in(
        self,
        opaque: int,
        message_ids: str,
        queue_id: int,
        queue_offset: int,
        unique_key: str,
        serialize_type: int,
        recall_handle: str = "",
    ) -> bytes:
        """Format `success` in any header codec, with a timer message's recall handle if given."""
        ext = {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
        if unique_key:
            ext["transactionId"] = unique_key
        if recall_handle:
            ext["recallHandle"] = recall_handle
        response = RemotingCommand(self._code, opaque, RESPONSE_FLAG, ext=ext | self._ext)
        return encode_command(response, serialize_type)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
