"""Responses to senders, with the status of a stored message or an error.

These run while frames are applied, on data that clients control. So an exception closes only the
connection concerned (broker.error_isolation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import NOT_STORED, ResponseCode
from raftmq.remoting.command import JSON, RESPONSE_FLAG, RemotingCommand

from ..config import BrokerConfig
from ..error_isolation import Contained
from ..errors import NOT_LEADER, OutcomeUnknown, Refused
from .callbacks import STORED_CODES, Done
from .frame_builder import AnswerFormat
from .internal_producer import InsideSend
from .queue import OWN, Connection, Sender, Stored

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
            int(code): AnswerFormat(config.region_id, config.trace_on, store_host, int(code))
            for code in STORED_CODES
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
                    chunks = writes.get(connection)
                    if chunks is None:
                        writes[connection] = [data]
                    else:
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
        if isinstance(connection, InsideSend):
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
        """Call the callbacks of the broker's own messages."""
        for done in dones:
            self._contained.run("told_of_store", partial(done, error))
