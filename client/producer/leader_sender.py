"""All sends to a broker group, written to its leader or queued during a leader search.

It is either *open* (it has a channel to the leader and writes sends at once) or *searching* (a task
owns the search, and sends wait in order). The search sends the first waiting message to each
replica in turn, in a classic group only to the master. A refusal is certain and quick; an
acceptance proves the leader, and all remaining messages follow. A fail-over thus costs a single
probing message instead of a storm.

A silent replica may only have a slow disk, and a retry elsewhere could store the message twice.
Before a probe is abandoned, the replica gets a heartbeat (client.producer.fault_tolerance). The
search waits while it answers heartbeats and no other replica leads.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..errors import BrokerUnreachable
from ..retry import LEADER_SEARCH
from ..route import ReplicaGroup
from .channel import Channel
from .pending_send import Pending

logger = logging.getLogger(__name__)
PAUSE_S = 0.1  # after a search that raised


class LeaderSenderCallbacks(Protocol):
    """The methods of the producer's engine for a leader sender."""

    async def open_channel(self, address: str) -> Channel:
        """Open a channel to `address`. Raises BrokerUnreachable."""

    def write(self, pending: Pending, channel: Channel) -> None:
        """Write an attempt."""

    def unanswered(self, pending: Pending, channel: Channel) -> None:
        """Return the unanswered probe to the front of the queue."""

    def probe_liveness(self, channel: Channel, timeout_s: float) -> asyncio.Task[bool]:
        """Send the broker a heartbeat; the task returns whether it was answered in time."""

    def expire(self, pending: Pending, now: float) -> bool:
        """End `pending` if its deadline has passed; return whether it is done."""

    def doubt(self, group: ReplicaGroup, address: str, hint: str | None) -> None: ...

    def accepted(self, group: ReplicaGroup, address: str) -> None: ...

    def ask_route(self) -> None:
        """Ask the name servers for the leader; the group gets the answer."""

    def spawn_search(self, sender: LeaderSender) -> None: ...


class LeaderSender:
    """The sends to a broker group. `scout_timeout_ms` limits an answer to probe or heartbeat."""

    def __init__(
        self,
        group: ReplicaGroup,
        owner: LeaderSenderCallbacks,
        now: Callable[[], float],
        scout_timeout_ms: int,
    ) -> None:
        self.group = group
        self.waiting: deque[Pending] = deque()
        self.channel: Channel | None = None
        self.searching = False
        self._owner = owner
        self._now = now
        self._scout_timeout = scout_timeout_ms / 1000

    @property
    def open(self) -> bool:
        """Return whether sends are written at once."""
        return self.channel is not None

    def submit(self, pending: Pending) -> None:
        """Write `pending` to the leader, or queue it during a leader search."""
        if self.channel is not None:
            self._owner.write(pending, self.channel)
            return
        self.waiting.append(pending)
        self._search_if_needed()

    def again(self, pendings: list[Pending]) -> None:
        """Send `pendings` again, in this order and before all waiting sends."""
        if self.channel is not None:
            for pending in pendings:
                self._owner.write(pending, self.channel)
            return
        self.waiting.extendleft(reversed(pendings))
        self._search_if_needed()

    def lost(self, channel: Channel, hint: str | None = None) -> None:
        """Start a search, because `channel` broke or its broker does not lead."""
        if self.channel is not None and self.channel is not channel:
            return  # stale, since this leader was left already
        self.channel = None
        self._owner.doubt(self.group, channel.address, hint)
        self._search_if_needed()

    def leader_changed(self) -> None:
        """Start a search if the directory has a new leader."""
        if self.channel is not None and self.group.leader != self.channel.address:
            self.channel = None
            self._search_if_needed()

    def drop_expired(self, now: float) -> None:
        """End overdue waiting sends; their callbacks' sends queue behind."""
        if any(pending.done or pending.deadline <= now for pending in self.waiting):
            waiting, self.waiting = self.waiting, deque()
            kept = [pending for pending in waiting if not self._owner.expire(pending, now)]
            self.waiting.extendleft(reversed(kept))

    async def search(self) -> None:
        """Find the leader by sending waiting messages, until it is found or nothing waits."""
        try:
            while True:
                try:
                    await LEADER_SEARCH.until_true()(self._round)
                    break
                except Exception:  # of a single send; the rest continues, or ends in time
                    logger.exception("leader_search_failed group=%s", self.group.name)
                    await asyncio.sleep(PAUSE_S)
        finally:
            self.searching = False
        self._flush()

    def _search_if_needed(self) -> None:
        if self.waiting and self.channel is None and not self.searching:
            self.searching = True
            self._owner.spawn_search(self)

    async def _round(self) -> bool:
        """Try each candidate once; return whether the search is over."""
        tried: set[str] = set()
        while True:
            self.drop_expired(self._now())
            if not self.waiting:
                return True
            address = next((a for a in self.group.send_targets() if a not in tried), None)
            if address is None:
                self._owner.ask_route()
                return False
            tried.add(address)
            try:
                channel = await self._owner.open_channel(address)
            except BrokerUnreachable as error:
                logger.debug("leader_search_unreachable address=%s error=%s", address, error)
                if self.waiting:  # otherwise the waiting sends have ended
                    self.waiting[0].reason = error.message
                continue
            if await self._probe(channel):
                self.channel = channel
                self._owner.accepted(self.group, address)
                return True

    async def _probe(self, channel: Channel) -> bool:
        """Send the first waiting message over `channel`; return whether the broker leads."""
        while self.waiting:
            pending = self.waiting.popleft()
            if not self._owner.expire(pending, self._now()):
                break
        else:
            return False
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        pending.scout = verdict
        self._owner.write(pending, channel)
        try:
            if not await self._decided(verdict, channel):
                self._owner.unanswered(pending, channel)
            return verdict.done() and verdict.result()
        finally:
            pending.scout = None

    async def _decided(self, verdict: asyncio.Future[bool], channel: Channel) -> bool:
        """Wait for the verdict on the probe; return False if the replica does not answer heartbeats
        or a different replica leads. If it is alive but does not answer, the probe's own deadline
        ends this."""
        half = self._scout_timeout / 2  # for the answer alone, then with the heartbeat
        version = self.group.version
        while True:
            await asyncio.wait((verdict,), timeout=half)
            if not verdict.done():
                probe = self._owner.probe_liveness(channel, half)
                await asyncio.wait((verdict, probe), timeout=half, return_when=FIRST_COMPLETED)
                lives = probe.done() and not probe.cancelled() and probe.result()
                changed = self.group.version != version and self.group.leader is not None
                elsewhere = changed and self.group.leader != channel.address
                if not verdict.done() and (not lives or elsewhere):
                    return False
            if verdict.done():
                return True

    def _flush(self) -> None:
        """After the search, write everything that waits to the leader."""
        channel = self.channel
        if channel is None:
            self._search_if_needed()
            return
        waiting, self.waiting = self.waiting, deque()
        now = self._now()
        for pending in waiting:
            if not self._owner.expire(pending, now):
                self._owner.write(pending, channel)
