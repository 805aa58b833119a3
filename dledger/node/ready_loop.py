"""The ready loop performs a core's output in the order persist, send, acknowledge.

`_perform` alone defines that order. Every input of the core (a message, a tick, a connection, a
finished fdatasync, a proposal) ends in `run`, which performs until nothing is left.

Invariants: a single Ready is performed at a time, and nothing else while its hard state is being
saved. After `fail`, `silence` or `stop` nothing is performed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ParamSpec

from ..raft.clock import StallAwareClock
from ..raft.core import RaftCore
from ..raft.errors import FrameDamaged, NotLeader
from ..raft.messages import AppendOrder, NodeId, Outgoing, PrevFrame, Ready, TimeoutNow
from ..storage.hard_state_writer import HardStateSaver
from ..storage.log_storage import RaftLog
from ..storage.log_writer import FrameWriter
from ..storage.startup_state import Promises
from ..transport.transport import PeerLinks
from ..transport.wire import encode_append, encode_message
from .alarm import Alarm
from .applier import Applier
from .disk_health import DiskHealth
from .proposer import Proposer
from .reads import Reads
from .roles import Roles

log = logging.getLogger("raftmq.dledger.node.node")
P = ParamSpec("P")

HAND_OVER_MS = 20  # a last message reaches the socket before the connections close
FRAMES_KEEP_BUSY = 2  # one at the peers' disks, one on its way


@dataclass(slots=True)
class Life:
    """Whether a member runs, and the reason why it ended if it failed."""

    running: bool = False  # the core runs
    failure: str | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class Pump:
    """Drives a member's core, until it fails or stops. All methods run on the loop.

    `on_fatal(reason)` is called at most once. `on_members` is called when a configuration comes
    into force or is committed."""

    life: Life
    core: RaftCore
    core_ms: StallAwareClock  # the core's time
    log: RaftLog
    writer: FrameWriter
    promises: Promises
    saver: HardStateSaver
    disk: DiskHealth
    links: PeerLinks
    applier: Applier
    proposer: Proposer
    reads: Reads
    roles: Roles
    on_members: Callable[[], None]
    on_fatal: Callable[[str], None]
    alarm: Alarm = field(default_factory=Alarm, init=False)  # of the core's next deadline
    _busy: bool = field(default=False, init=False)
    _scheduled: bool = field(default=False, init=False)
    _unfinished: Ready | None = field(default=None, init=False)  # its hard state is being saved
    _commit_due: int = field(default=0, init=False)  # committed, to be applied; 0: nothing
    # The term and the last frame of the last request over each open link.
    _sent: dict[NodeId, tuple[int, int]] = field(default_factory=dict, init=False)

    def drive(self, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `act`, which changes the core, then perform the core's output."""
        if not self.life.running:
            return
        try:
            act(*args, **kwargs)
        except OSError as error:
            self.fail("reading or writing failed", error, disk=True)
            return
        except Exception as error:  # ring boundary: a broken promise stops the node
            self.fail("an invariant is broken", error)
            return
        self.run()

    def ask(self, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `act`, a client's request to the core. A failed assertion stops the node, and is
        also raised to the caller, as an error of the request. Raises NotLeader."""
        if not self.life.running:
            raise NotLeader(None)
        try:
            act(*args, **kwargs)
        except AssertionError as error:
            self.fail("an invariant is broken", error)
            raise
        self.run()

    def request_cut(self, at_once: bool) -> None:
        """Note that the application has something to propose (RaftMember.request_cut)."""
        if not self.life.running:
            return
        self.proposer.frame_due = True
        core = self.core
        idle = core.last_index - core.commit_index < FRAMES_KEEP_BUSY
        if at_once and idle and not self._busy:
            self.run()
        else:
            self.run_soon()

    def run_soon(self) -> None:
        """Call `run` once, after the other callbacks of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._scheduled = False
        self.run()

    def applied(self) -> None:
        applied = self.applier.applied_index
        self.reads.applied(applied)
        self.roles.applied(applied)
        self.run()

    def apply_failed(self, error: Exception) -> None:
        """End the member, because committed frames could not be read or applied."""
        self.fail("committed frames could not be applied", error, disk=isinstance(error, OSError))

    def durable(self, index: int) -> None:
        """Note that an fdatasync has made the log durable up to `index`."""
        self.drive(self.core.durable, index)

    def write_held(self) -> None:
        """Write the frames that a full disk had no space for, if there is space now."""
        if self.writer.retry():
            self.disk.has_room()
            self._commit_due = self.core.commit_index

    def read(self) -> asyncio.Future[int]:
        """Add a linearizable read; the future gives its index once that is applied. Raises Busy."""
        return self.reads.add(self._ask_read)

    def _ask_read(self, token: int) -> None:
        self.ask(self.core.read_index, token)

    def run(self) -> None:
        """Perform the core's output and propose waiting work, until neither is left. A nested call
        leaves the work to the outer call."""
        life = self.life
        if self._busy or not life.running:
            return
        self._busy = True
        try:
            core, saver, proposer = self.core, self.saver, self.proposer
            ready = core.ready
            while life.running and not saver.busy:
                if self._unfinished is not None:
                    unfinished, self._unfinished = self._unfinished, None
                    self._finish(unfinished)
                    continue
                output = ready()
                if output is not None:
                    self._perform(output)
                elif core.wants_noop:
                    proposer.propose_noop()
                elif proposer.propose_change():
                    continue
                elif self.roles.serving and proposer.propose_next():
                    continue
                elif self._commit_due:
                    # Last, so that acknowledgements and the next frame are sent before this node
                    # builds ConsumeQueues and answers.
                    commit_index, self._commit_due = self._commit_due, 0
                    self.applier.advance(min(commit_index, self.log.last_index))
                else:
                    break
        except OSError as error:
            self.fail("writing failed", error, disk=True)
        except Exception as error:  # ring boundary: a broken promise stops the node
            self.fail("an invariant is broken", error)
        finally:
            self._busy = False

    def _perform(self, ready: Ready) -> None:
        """Persist, then send, then acknowledge, in the order that `messages.Ready` defines."""
        if ready.truncate_from is not None:
            log.warning(
                "log_truncated node=%s from=%d frames=%d",
                self.core.node_id,
                ready.truncate_from,
                max(0, self.log.last_index - ready.truncate_from + 1),
            )
            self.writer.truncate(ready.truncate_from)
        if ready.append:
            full = self.writer.append(ready.append)
            if full is not None:
                self.disk.full(full)
        if ready.hard_state is not None:
            self._unfinished = ready
            self.saver.save(ready.hard_state, self._saved)
        else:
            self._finish(ready)

    def _saved(self, error: BaseException | None) -> None:
        """Continue with `_finish` once term and vote are durable; fail if unsaved."""
        if not self.life.running:
            return
        if error is not None:
            self.fail("saving term and vote failed", error, disk=True)
            return
        if self.core.recovered and self.promises.recovering is not None:
            log.warning("recovered node=%s term=%s", self.core.node_id, self.core.term)
            self.promises.recovering = None
        self.run()

    def _finish(self, ready: Ready) -> None:
        """Perform the part of `_perform` after term and vote are durable."""
        if ready.messages:
            self._send(ready.messages)
        if ready.append:
            # After the sending, so that all disks work in parallel. Nothing of this is acknowledged
            # before it is durable.
            self.disk.written()
        if ready.configuration_changed:  # after the last message to a removed replica
            self.on_members()
        if ready.commit_index is not None:
            self._commit_due = ready.commit_index  # applied by `run`
        for token, index in ready.reads:
            self.reads.confirmed(token, index, self.applier.applied_index)
        for token in ready.failed_reads:
            self.reads.failed(token, self.core.leader)
        if ready.role is not None:
            self.alarm.soon()  # the deadline has changed
            self.roles.changed(ready.role, self.core.commit_index, self.applier.applied_index)

    def _send(self, messages: tuple[Outgoing, ...]) -> None:
        """Send in a single write per peer; frames separately, since only they may be dropped."""
        control: dict[NodeId, list[bytes]] = {}
        frames: dict[NodeId, list[bytes]] = {}
        requests: dict[tuple[int, ...], list[bytes]] = {}  # followers usually get the same
        for message in messages:
            if isinstance(message, AppendOrder):
                m = message
                if m.last_index > self.log.last_index:
                    # no space here (dledger/storage/log_writer.py); as if lost
                    continue
                if m.first_index < self.log.index.first_index:
                    continue  # deleted by retention while term and vote were saved
                content = m.term, m.first_index, m.last_index, m.commit_index
                if content not in requests:
                    try:
                        requests[content] = self._encode(m)
                    except FrameDamaged as damage:
                        self.disk.check(damage.index, self.read_failed)
                        continue  # the same; sent again after the repair
                buffers = frames.setdefault(m.to, [])
                if self._sent.get(m.to) != (m.term, m.prev_index):
                    buffers.extend(self._prev_frame(m))
                self._sent[m.to] = m.term, m.last_index
                buffers += requests[content]
            else:
                control.setdefault(message.to, []).extend(encode_message(message))
        for peer, buffers in control.items():
            self.links.send(peer, buffers, droppable=False)
        for peer, buffers in frames.items():
            if not self.links.send(peer, buffers, droppable=True):
                self._sent.pop(peer, None)

    def _encode(self, order: AppendOrder) -> list[bytes]:
        """Return the request that an order asks for. Raises FrameDamaged."""
        frames = self.log.frames(order.first_index, order.last_index)
        return encode_append(
            order.term, order.prev_index, order.prev_term, order.commit_index, frames
        )

    def link_opened(self, peer: NodeId) -> None:
        """Note that the link to `peer` is open, and nothing was sent over it yet."""
        self._sent.pop(peer, None)
        self.core.peer_opened(peer)

    def _prev_frame(self, order: AppendOrder) -> list[bytes]:
        """Return the message that names the frame before those of the order. There is none for a
        frame that retention deleted, or that is damaged."""
        crc = self.log.header_crc(order.prev_index)
        if crc is None:
            return []
        index, term = order.prev_index, order.prev_term
        return encode_message(PrevFrame(self.core.node_id, order.to, order.term, index, term, crc))

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Report a failed read for a consumer or peer; `again` repeats it (disk_health.py)."""
        # Later, because the caller may be at work for the pump.
        asyncio.get_running_loop().call_soon(self.drive, self.disk.read_failed, error, again)

    def lose_promises(self, incarnation: int, reason: str) -> None:
        """Recover (RaftCore.lose_promises); discard messages that wait for the vote file."""
        log.error("durable_state_lost node=%s reason=%s", self.core.node_id, reason)
        if self._unfinished is not None:
            self._unfinished = replace(self._unfinished, messages=())
        self.promises.recovering = reason
        self.promises.set_back = True
        self.core.lose_promises(incarnation, reason)

    def fail(self, reason: str, error: BaseException, disk: bool = False) -> None:
        """End the member, which cannot keep Raft's guarantees. If only its `disk` fails, a leader's
        last message asks a follower to start an election."""
        life = self.life
        if life.failure is not None:
            return
        failure = life.failure = f"{reason}: {error!r}"
        if disk:
            self.disk.failed(failure)
        log.critical("member_failed node=%s", self.core.node_id, exc_info=error)
        self._end()
        try:
            self.core.step_down(failure)
            if disk and self._say_last_word():
                asyncio.get_running_loop().call_later(HAND_OVER_MS / 1000, self.links.abort)
            else:
                self.links.abort()  # the peers notice at once and elect another leader
            self.roles.end(self.core.term, failure)
        finally:  # in any state, no waiter may be left
            self._close(failure)
            self.on_fatal(failure)

    def silence(self, reason: str) -> None:
        """Stop sending and receiving for good, because a group snapshot replaces this log."""
        self.life.failure = reason
        self._end()
        self.links.abort()
        self._close(reason)

    def stop(self) -> None:
        """Perform nothing more, because the node stops."""
        self._end()
        self._close("the node stops")

    def _end(self) -> None:
        self.life.running = self.roles.serving = False
        self.applier.stop()

    def _close(self, reason: str) -> None:
        self.proposer.close(reason)
        self.reads.close()

    def _say_last_word(self) -> bool:
        """Send only a deposed leader's TimeoutNow, since all other messages promise what this disk
        cannot keep. Return whether there was one."""
        ready = self.core.ready()
        orders = [m for m in ready.messages if isinstance(m, TimeoutNow)] if ready else []
        self._send(tuple(orders))
        return bool(orders)
