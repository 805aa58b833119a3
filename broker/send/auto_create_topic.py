"""Auto-creation of topics by sends, and the sends that wait for it.

The log creates the topic. Limits are CREATIONS_MAX topics at a time, `topicsMax` in total, and the
bytes that the send path counts (waitingBytesMax).
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.fields import integer_or

from ..config import BrokerConfig
from ..errors import Refused, busy
from ..tables.state import BrokerState, put_topic
from ..tables.topics import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX, auto_created
from .queue import HeldSend

WAITING_OVERHEAD_BYTES = 512  # counted for a waiting send besides its record
CREATIONS_MAX = 1_000

# Called with the waiting sends, their topic, and the error if the topic was not created.
Created = Callable[[list[HeldSend], str, Exception | None], None]


class Creations:
    """Topics in creation and their waiting sends. `propose(payload, done)` calls `done(None)` once
    the command is applied, or `done(error)`."""

    def __init__(
        self,
        config: BrokerConfig,
        state: BrokerState,
        propose: Callable[[bytes, Callable[[Exception | None], None]], None],
        created: Created,
    ) -> None:
        self._config = config
        self._state = state
        self._propose = propose
        self._created = created
        self._waiting: dict[str, list[HeldSend]] = {}

    def wait(self, name: str, send: HeldSend, room_bytes: int) -> None:
        """Keep a send until its missing topic is created. Raises Refused."""
        derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        template = send.ext.get("c") or ""
        may_create = self._config.auto_create_topic_enable and template == DEFAULT_TOPIC
        if name == DEFAULT_TOPIC or not (may_create or derived):
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        waiters = self._waiting.get(name)
        full = waiters is None and len(self._waiting) >= CREATIONS_MAX
        if full or len(send.body) + WAITING_OVERHEAD_BYTES > room_bytes:
            raise busy("too much waits for topics to be created")
        if not self._state.has_room_for_topics(1, self._config.topics_max):
            raise busy(f"there are {self._config.topics_max} topics already; none was created")
        queue_count = 1 if derived else integer_or(send.ext, "d", 4)
        config = auto_created(name, queue_count, self._config.default_topic_queue_nums)
        if waiters is not None:
            waiters.append(send)
            return
        self._waiting[name] = [send]
        self._propose(put_topic(config, if_absent=True), lambda error: self._done(name, error))

    def _done(self, name: str, error: Exception | None) -> None:
        self._created(self._waiting.pop(name, []), name, error)
