"""Does the work of healer.py and scrub.py without asyncio: the state machines of dledger.repair
over a simulated disk and network.

While `repairing` is set its node is not up: it neither votes nor acknowledges, but it asks and
answers about damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftmq.dledger.errors import FrameDamaged
from raftmq.dledger.healer import set_aside
from raftmq.dledger.messages import HardState
from raftmq.dledger.repair import (
    Asker,
    FrameRepair,
    GiveUp,
    Patch,
    RepairRequest,
    RepairResponse,
    RepairTiming,
    Standing,
    StartRepair,
    Wanted,
    answer,
    standing_of,
)
from raftmq.store.logsync import SyncTicket

if TYPE_CHECKING:
    from tests.simulator.node import SimNode

TEND_BEATS = 4.0  # heartbeats
SCRUB_FRAMES = 30  # looked at each time
GIVE_UP_BEATS = 40.0  # three to four elections


class Mender:
    """One process' repair; `recover` leads to `node.take_part`, at once or by and by."""

    start_repair_class = StartRepair

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.world = node.world
        beat = self.world.unit_ms
        timing = RepairTiming(2 * beat, 8 * beat, GIVE_UP_BEATS * beat)
        numbers = self.first_number()
        askers = [Asker(node.name, node.known_voters, timing, numbers) for _ in range(2)]
        self.frames = FrameRepair(askers[0], timing)
        self.repairing: StartRepair | None = None
        self._start = self.start_repair_class(askers[1], node.known_voters, timing, node.log)
        self._start.asker.set_members(node.known_members)
        self._incarnation = node.incarnation
        self._initial: HardState | None = None  # persisted before the log was cut
        self._scrub_next = 1

    def first_number(self) -> int:
        return self.node.incarnation << 32

    # -- before it takes part -------------------------------------------------------------------

    def recover(self) -> None:
        """Raises SimCrash."""
        node = self.node
        wanted = node.log.recover()
        if node.log.may_lack_its_end and node.disk.exists("raft/hardstate"):
            self._note("how far the log was durable is not known")
        if wanted is not None:
            self._start.term = node.promises.last_term()
        self._go_on(wanted)

    def _go_on(self, wanted: Wanted | None) -> None:
        if wanted is None:
            self._take_part()
            return
        self.world.note(f"{self.node.name} repairs {wanted} {self.node.log.damage_reason}")
        self.repairing = self._start
        self._start.begin(wanted, self.world.now_ms)
        self.send_requests()
        self._wait()

    def _take_part(self) -> None:
        node = self.node
        self.repairing = None
        node.log.tell_damage(self._damaged)
        self.world.damage.takes_part(node)
        node.take_part(self._initial or node.promises.open(node.log.last_index == 0))
        for peer in node.peers:
            self.world.tell_opened(node.name, peer)
        self._later(TEND_BEATS * self.world.unit_ms, self._tend)

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Unless the process is dead by then."""

        def act() -> None:
            if self._incarnation == self.node.incarnation:
                self.node.may_die(action)

        self.world.after(delay_ms, act)

    def _wait(self) -> None:
        delay_ms = max(self._start.asker.due_ms - self.world.now_ms, 0.1)
        number = self._start.asker.due_ms

        def tick() -> None:
            if self.repairing is not None and self._start.asker.due_ms == number:
                self._start.tick(self.world.now_ms)
                self.send_requests()
                self._wait()

        self._later(delay_ms, tick)

    def _decided(self, verdict: Patch | GiveUp) -> None:
        self.world.note(f"{self.node.name} {verdict}")
        if isinstance(verdict, Patch):
            self._go_on(self.mend(verdict))
            if not verdict.proven and self.repairing is not None:
                self.world.plan.kill_in_doubt(self.node)
        else:
            self.give_up(verdict.reason)
            self._take_part()

    def mend(self, patch: Patch) -> Wanted | None:
        return self.node.log.mend(patch.frames, patch.proven, patch.last)

    def give_up(self, reason: str) -> None:
        node = self.node
        self._note(reason)
        self.world.damage.giving_up(node)
        set_aside(node.disk, "raft", node.commitlog, node.log.index.end_position)
        node.log.cut_damaged()

    def _note(self, reason: str) -> None:
        """Before anything else: it may have lost promises."""
        if self._initial is None:
            self.node.promises.give_up(reason)
            self._initial = self.node.promises.open(False)
            self.node.gives_up()

    def hears(self, peer: str) -> None:
        """Somebody speaks, maybe one whom the file does not know of: it may lead."""
        asker = self._start.asker
        asker.set_members({*asker.peers, peer})

    # -- messages -------------------------------------------------------------------------------

    def on_message(self, message: RepairRequest | RepairResponse) -> None:
        """Raises SimCrash."""
        if isinstance(message, RepairRequest):
            self.world.send(self._answer(message))
        elif self.repairing is not None:
            verdict = self.repairing.step(message, self.world.now_ms)
            self.send_requests()
            if verdict is not None:
                self._decided(verdict)
            elif self._start.asker.wanted is not None:
                self._wait()
        else:
            self._patch_frame(message)

    def _answer(self, request: RepairRequest) -> RepairResponse:
        node = self.node
        log = node.log
        if self.repairing is not None:
            return answer(request, log.index, 0, Standing.REPAIRS, log.frames, 0)
        core = node.core
        standing = standing_of(core.role, core.leader_ready, core.recovered)
        return answer(request, log.index, core.commit_index, standing, log.frames, core.term)

    def send_requests(self) -> None:
        for request in (self.repairing or self.frames).asker.requests():
            self.world.send(request)

    # -- while it takes part --------------------------------------------------------------------

    def _damaged(self, damage: FrameDamaged) -> None:
        if self.frames.add(self.node.log.wanted(damage.index)):
            self.world.note(f"{self.node.name} finds {damage}")
            self.frames.tick(self.world.now_ms)
            self.send_requests()

    def _patch_frame(self, response: RepairResponse) -> None:
        log = self.node.log
        frame = self.frames.step(response, self.world.now_ms, log.segment_end)
        if frame is not None:
            self.frames.forget(frame.index)
            if self._is_there(frame.index, frame.term):
                self.world.note(f"{self.node.name} mends {frame}")
                ticket = log.overwrite(frame)
                self._later(self.world.profile.sync_ms, lambda: self.sync_patch(ticket))
                self.node.mended()
        self.send_requests()

    def sync_patch(self, ticket: SyncTicket) -> None:
        ticket.run()
        self.node.commitlog.finish_sync(ticket)

    def _is_there(self, index: int, term: int) -> bool:
        there = self.node.log.index
        return there.first_index <= index <= there.last_index and there.term_at(index) == term

    def _tend(self) -> None:
        """The healer's tick, and the scrubber's."""
        self._later(TEND_BEATS * self.world.unit_ms, self._tend)
        if self.node.paused:
            return
        self.frames.prune(self._is_there)
        self.frames.tick(self.world.now_ms)
        self.send_requests()
        for index in self.frames.hopeless(self.world.now_ms):
            if index > self.node.core.commit_index:
                self.world.note(f"{self.node.name}: nobody else has uncommitted frame {index}")
                self.node.crash(power=False)
                self.world.plan.restart_later(self.node)
                return
        self.scrub()

    def scrub(self) -> None:
        log = self.node.log
        for _ in range(SCRUB_FRAMES):
            if not log.index.first_index <= self._scrub_next <= log.durable_index:
                self._scrub_next = log.index.first_index
                return
            log.check(self._scrub_next)
            self._scrub_next += 1
