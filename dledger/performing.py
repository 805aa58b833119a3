"""How a member performs what its core wants: persist, then send, then acknowledge.

`_perform` is the one place that defines that order. Everything that can make the core want
something (a message, a tick, a connection, a finished fdatasync, a proposal) ends in `_pump`,
which performs until nothing is left. Events and the broker's calls are handled by member.py, which
also owns the fields.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from raftmq.dledger.applier import Application, Applier
from raftmq.dledger.core import RaftCore
from raftmq.dledger.errors import FrameDamaged
from raftmq.dledger.flusher import FlushMode, LogFlusher
from raftmq.dledger.healer import Healer
from raftmq.dledger.health import DiskHealth
from raftmq.dledger.log import RaftLog
from raftmq.dledger.messages import (
    AppendOrder,
    NodeId,
    Outgoing,
    Ready,
    Role,
    RoleEvent,
    TimeoutNow,
)
from raftmq.dledger.peers import PeerLinks
from raftmq.dledger.promises import Promises
from raftmq.dledger.proposals import Proposals
from raftmq.dledger.proposer import Proposer
from raftmq.dledger.reads import Reads
from raftmq.dledger.readtrial import ReadTrial
from raftmq.dledger.roster import Roster
from raftmq.dledger.saver import HardStateSaver
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.wire import encode_append, encode_message
from raftmq.dledger.writer import FrameWriter

log = logging.getLogger("raftmq.dledger.member")

HAND_OVER_MS = 20  # for a last message to reach the socket before the connections are cut


class Performing:
    """The part of RaftMember that performs what the core wants (the pump), and ends the member."""

    config: MemberConfig
    core: RaftCore
    log: RaftLog
    failure: str | None
    _application: Application
    _applier: Applier
    _clock_ms: Callable[[], float]
    _commit_due: int  # committed, to be applied; 0: nothing
    _flusher: LogFlusher
    _has_core: bool
    _healer: Healer
    _health: DiskHealth
    _links: PeerLinks
    _on_fatal: Callable[[str], None]
    _promises: Promises
    _proposals: Proposals
    _proposer: Proposer
    _pumping: bool
    _read_trial: ReadTrial
    _reads: Reads
    _ready_event: tuple[RoleEvent, int] | None  # to deliver once applied
    _roster: Roster
    _running: bool
    _saver: HardStateSaver
    _serving: bool  # the application knows that it leads
    _told_leader: NodeId | None = None  # who leads, as the application knows
    _timer: asyncio.TimerHandle | None
    _unfinished: Ready | None  # its hard state is being saved; the rest waits
    _was_leader: bool
    _writer: FrameWriter

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Note that a read for a consumer or peer failed; `again` repeats it (readtrial.py)."""
        trial = self._read_trial  # later: the caller may be at work for the pump
        asyncio.get_running_loop().call_soon(
            self._drive, lambda: trial.failed(self.core, error, again)
        )

    # -- the pump -----------------------------------------------------------------------------

    def _drive(self, act: Callable[[], None]) -> None:
        """Call `act`, which changes the core, then perform what the core wants."""
        if not self._running:
            return
        try:
            act()
        except Exception as error:  # ring boundary: a broken promise stops the node
            self._fail("an invariant is broken", error)
            return
        self._pump()

    def _pump(self) -> None:
        """Perform what the core wants and propose what waits, until there is neither.

        A call from within (by an application in a callback) leaves the work to the pump that is
        already running."""
        if self._pumping or not self._running:
            return
        self._pumping = True
        try:
            ready = self.core.ready
            while self._running and not self._saver.busy:
                if self._unfinished is not None:
                    unfinished, self._unfinished = self._unfinished, None
                    self._finish(unfinished)
                    continue
                wanted = ready()
                if wanted is not None:
                    self._perform(wanted)
                elif self.core.wants_noop:
                    self._proposer.propose_noop()
                elif self._proposer.propose_change(self._clock_ms()):
                    continue
                elif self._serving and self._proposer.propose_next():
                    continue
                elif self._commit_due:
                    # Last, so that acknowledgements and the next frame are on their way to the
                    # peers while this node's ConsumeQueues and answers are made.
                    commit_index, self._commit_due = self._commit_due, 0
                    self._applier.advance(min(commit_index, self.log.last_index))
                else:
                    break
        except OSError as error:
            self._fail("writing failed", error, disk=True)
        except Exception as error:  # ring boundary: a broken promise stops the node
            self._fail("an invariant is broken", error)
        finally:
            self._pumping = False

    def _perform(self, ready: Ready) -> None:
        """Persist, then send, then acknowledge, in the order that `messages.Ready` defines."""
        if ready.truncate_from is not None:
            log.warning("log_truncated node=%s from=%s", self.config.node_id, ready.truncate_from)
            self._writer.truncate(ready.truncate_from)
        if ready.append:
            full = self._writer.append(ready.append)
            if full is not None:
                self._disk_is_full(full)
        if ready.hard_state is not None:
            self._unfinished = ready
            self._saver.save(ready.hard_state, self._saved)
        else:
            self._finish(ready)

    def _saved(self, error: BaseException | None) -> None:
        """Let the pump go on with `_finish`, now that term and vote are durable; fail if they could
        not be saved."""
        if not self._running:
            return
        if error is not None:
            self._fail("saving term and vote failed", error, disk=True)
            return
        if self.core.whole and self._promises.recovering is not None:
            log.warning("whole node=%s term=%s", self.config.node_id, self.core.term)
            self._promises.recovering = None
        self._pump()

    def _disk_is_full(self, error: OSError) -> None:
        log.warning("disk_full node=%s error=%s", self.config.node_id, error)
        self._health.full(f"no room for the next frame: {error}")
        self.core.disk_fails(self._health.reason, takes_frames=False)

    def _frames_written(self) -> None:
        self._flusher.written()
        if self._flusher.mode is FlushMode.ASYNC:
            self.core.durable(self.log.last_index)

    def _finish(self, ready: Ready) -> None:
        """Do the part of `_perform` that comes after term and vote are durable."""
        if ready.messages:
            self._send(ready.messages)
        if ready.append:
            # Behind the sending, so that the peers' disks work while ours does. Nothing of this
            # is acknowledged before the core is told that it is durable.
            self._frames_written()
        if ready.configuration_changed:  # after the last message to a removed replica
            self._members_changed()
        if ready.commit_index is not None:
            self._commit_due = ready.commit_index  # applied by the pump
        for token, index in ready.reads:
            self._reads.confirmed(token, index, self._applier.applied_index)
        for token in ready.failed_reads:
            self._reads.failed(token, self.core.leader)
        if ready.role is not None:
            self._role_changed(ready.role)

    def _send(self, messages: tuple[Outgoing, ...]) -> None:
        """Send in one write per peer; frames separately, since only they may be dropped."""
        control: dict[NodeId, list[bytes]] = {}
        frames: dict[NodeId, list[bytes]] = {}
        for message in messages:
            if isinstance(message, AppendOrder):
                m = message
                if m.last_index > self.log.last_index:
                    continue  # no room for it here (writer.py); as if it had been lost
                try:
                    sent = self.log.frames(m.first_index, m.last_index)
                except FrameDamaged as damage:
                    self._read_trial.check(damage.index, self.read_failed)
                    continue  # the same: it is sent again, by then it may be mended
                buffers = encode_append(m.term, m.prev_index, m.prev_term, m.commit_index, sent)
                frames.setdefault(m.to, []).extend(buffers)
            else:
                control.setdefault(message.to, []).extend(encode_message(message))
        for peer, buffers in control.items():
            self._links.send(peer, buffers, droppable=False)
        for peer, buffers in frames.items():
            self._links.send(peer, buffers, droppable=True)

    def _members_changed(self) -> None:
        core = self.core
        configurations = core.configurations
        log.warning(
            "members_changed node=%s index=%d committed=%s voters=%s members=%s",
            core.node_id,
            configurations.index,
            configurations.index <= core.commit_index,
            ",".join(sorted(core.voters)),
            ",".join(sorted(configurations.current.ids)),
        )
        self._roster.follow(core, self._links, self._healer)

    # -- role and progress --------------------------------------------------------------------

    def _role_changed(self, event: RoleEvent) -> None:
        log.info(
            "role_changed node=%s role=%s term=%s leader=%s ready=%s reason=%s",
            self.config.node_id,
            event.role.value,
            event.term,
            event.leader,
            event.leader_ready,
            event.reason,
        )
        leads = event.role is Role.LEADER
        if self._was_leader and not leads:
            self._serving = False
            self._proposer.leadership_lost()
            self._proposals.leadership_lost(event.leader)
        self._was_leader = leads
        self._ready_event = None
        if event.leader_ready and self._applier.applied_index < self.core.commit_index:
            self._ready_event = (event, self.core.commit_index)
        else:
            self._deliver(event)

    def _deliver(self, event: RoleEvent) -> None:
        if event.leader_ready and not self._serving:
            self._serving = True
            self._proposer.cut_wanted = True  # sends may have come while we were not ready
        self._told_leader = event.leader
        self._application.role_changed(event)

    def _on_applied(self) -> None:
        applied = self._applier.applied_index
        self._reads.applied(applied)
        if self._ready_event is not None and applied >= self._ready_event[1]:
            event, _ = self._ready_event
            self._ready_event = None
            self._deliver(event)
        self._pump()

    # -- the end ------------------------------------------------------------------------------

    def _fail(self, reason: str, error: BaseException, disk: bool = False) -> None:
        """End the member: it cannot keep Raft's promises any more, and sends nothing more. But if
        only its `disk` fails, a leader's last message asks a follower to take over."""
        if self.failure is not None:
            return
        self.failure = f"{reason}: {error!r}"
        if not self._has_core:
            self._healer.abandon(error)  # and `start` raises it
            return
        if disk:
            self._health.failed(self.failure)
        log.critical("member_failed node=%s", self.config.node_id, exc_info=error)
        self._running = False
        self._serving = False
        if self._timer is not None:
            self._timer.cancel()
        self._applier.stop()
        try:
            self.core.step_down(self.failure)
            if disk and self._say_last_word():
                asyncio.get_running_loop().call_later(HAND_OVER_MS / 1000, self._links.abort)
            else:
                self._links.abort()  # the peers notice at once and elect another leader
            term = self.core.term
            self._application.role_changed(
                RoleEvent(Role.FOLLOWER, term, None, False, self.failure)
            )
        finally:  # whatever state the rest is in, nobody may be left waiting
            self._proposer.leadership_lost()
            self._proposals.close(self.failure)
            self._reads.close()
            self._on_fatal(self.failure)

    def _say_last_word(self) -> bool:
        """Send a deposed leader's TimeoutNow to its successor, and nothing else: all other messages
        promise what this disk cannot keep any more. Return whether there was one."""
        ready = self.core.ready()
        orders = [m for m in ready.messages if isinstance(m, TimeoutNow)] if ready else []
        self._send(tuple(orders))
        return bool(orders)
