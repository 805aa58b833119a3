"""The audit log of operators' changes, kept in the log of the group.

Each change is a message of OPERATOR_LOG_TOPIC, replicated and retained like any message. Clients
may read the topic, but only the broker writes to it. A change of the group is recorded as *asked*
before it is made, and again with its outcome, so that no change is unrecorded. A change of this
process alone (configuration, fault, stop) is recorded afterwards, even if storing fails. The body
is JSON:

    {"id", "at": ms, "by", "via", "what", "target", "detail",
     "outcome": "asked" | "done" | "failed" | "unknown", "error"}

`by` is the initiator. `via` is the token used by a name server, or "remoting" for RocketMQ's
protocol. A follower stores nothing. It rejects changes of the group, and its process log has the
rest. Classic mode does not wait for slaves, because a client's timeout may be short.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import orjson

from raftmq.remoting.names import OPERATOR_LOG_TOPIC
from raftmq.store.properties import KEYS, TAGS, UNIQ_KEY, WAIT, encode_properties
from raftmq.store.record import pack_host

from ..errors import NOT_LEADER, OutcomeUnknown, Refused, busy
from ..messages.send_request import Outgoing
from ..send.callbacks import Completion, Done, is_unknown

DETAIL_LENGTH_MAX = 4_096
ERROR_LENGTH_MAX = 512
RESERVE_BYTES = 1 << 20  # beyond the limit of sends, for changes while sends are rejected
HOST = pack_host(("127.0.0.1", 0))
NO_DISK = ("DISK_FULL", "DISK_ERROR")  # errors that do not block an operator

T = TypeVar("T")
HIDDEN = "…"
CANCELLED = "nobody waited for its end"  # a time limit passed, or the connection ended
log = logging.getLogger("raftmq.broker.operators")


@dataclass(frozen=True, slots=True)
class Deed:
    """A change requested by an operator. `detail` is the request as JSON, without secrets."""

    what: str
    target: str
    by: str
    via: str
    detail: str


def detail_of(value: Mapping[str, Any], secrets: Collection[str]) -> str:
    """Return a request as a deed's `detail`, without the values of these keys."""
    shown = {key: HIDDEN if key in secrets else value_ for key, value_ in value.items()}
    return shortened(orjson.dumps(shown).decode(), DETAIL_LENGTH_MAX)


def shortened(text: str, length_max: int) -> str:
    """Return the text, cut to its length limit."""
    return text if len(text) <= length_max else f"{text[:length_max]}…"


class Stores(Protocol):
    """The send path's interface for the broker's own messages."""

    def store(
        self, messages: list[Outgoing], command: bytes, done: Done, *, reserve_bytes: int = 0
    ) -> None: ...

    def wake(self, at_once: bool = False) -> None: ...


class OperatorLog:
    def __init__(self, sends: Stores, wall_ms: Callable[[], int]) -> None:
        self._sends = sends
        self._wall_ms = wall_ms

    async def around(self, deed: Deed, work: Callable[[], Awaitable[T]]) -> T:
        """Record the request, do the work, and record its outcome. Raises the errors of `work`, and
        Refused if the request could not be recorded."""
        deed_id = uuid.uuid4().hex.upper()
        recorded = await self._requested(deed_id, deed)
        try:
            result = await work()
        except asyncio.CancelledError:
            if recorded:
                self._tell(deed_id, deed, "unknown", CANCELLED)
            raise
        except Exception as error:
            if recorded:
                outcome = "unknown" if is_unknown(error) else "failed"
                self._tell(deed_id, deed, outcome, str(error))
            raise
        if recorded:
            self._tell(deed_id, deed, "done")
        return result

    async def _requested(self, deed_id: str, deed: Deed) -> bool:
        """Store the request. Return False if this replica cannot store it but may proceed."""
        ended = Completion()
        try:
            message = self._message(deed_id, deed, "asked")
            self._sends.store([message], b"", ended, reserve_bytes=RESERVE_BYTES)
            self._sends.wake()
            await ended.stored()
        except asyncio.CancelledError:
            self._tell(deed_id, deed, "failed", f"it was not begun: {CANCELLED}")
            raise
        except OutcomeUnknown as error:
            reason = "the group did not commit the record; nothing was changed"
            raise busy(f"it was not done, because it could not be recorded: {reason}") from error
        except Refused as error:
            if error.tag == NOT_LEADER:
                return False
            if error.tag not in NO_DISK:
                raise
            log.warning("not_recorded what=%s target=%s by=%s: %s", deed.what, deed.target,
                        deed.by, error)  # fmt: skip
            return False
        return True

    async def afterwards(self, deed: Deed, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work, and record its outcome without waiting. Raises the errors of `work`."""
        deed_id = uuid.uuid4().hex.upper()
        try:
            result = await work()
        except asyncio.CancelledError:
            self._tell(deed_id, deed, "unknown", CANCELLED)
            raise
        except Exception as error:
            self._tell(deed_id, deed, "failed", str(error))
            raise
        self._tell(deed_id, deed, "done")
        return result

    def _tell(self, deed_id: str, deed: Deed, outcome: str, error: str = "") -> None:
        try:
            message = self._message(deed_id, deed, outcome, error)
            self._sends.store([message], b"", lambda _: None, reserve_bytes=RESERVE_BYTES)
            self._sends.wake()
        except Refused as refused:
            log.info("outcome_not_recorded what=%s by=%s: %s", deed.what, deed.by, refused)

    def _message(self, deed_id: str, deed: Deed, outcome: str, error: str = "") -> Outgoing:
        now_ms = self._wall_ms()
        body: dict[str, Any] = {"id": deed_id, "at": now_ms, **asdict(deed), "outcome": outcome}
        body["error"] = error[:ERROR_LENGTH_MAX]
        properties = {UNIQ_KEY: deed_id, KEYS: deed_id, TAGS: deed.what, WAIT: "false"}
        return Outgoing(
            OPERATOR_LOG_TOPIC, 0, orjson.dumps(body), encode_properties(properties), now_ms, HOST
        )
