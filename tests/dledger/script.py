"""The language of the interaction scripts (after etcd's datadriven tests).

A script is blocks separated by blank lines; a block is commands, a line `----`, and exactly what
they print. Lines beginning with # are kept. Commands:

    nodes a b c [name=value ...]   the group, with CoreConfig values
    log a 1 1 2 [term=3] [vote=b]  put a member with this log (terms of frames 1..) in place;
                                   [recovering]: it may have lost promises
    campaign a                     a's election time-out is over
    deliver [n] | deliver a->b [n] hand over queued messages, printing them
    settle                         deliver all, printing only what came of it
    cut a->b ... / heal            links that lose everything / none do any more
    lose a->b                      throw away what is queued on that link
    repeat a->b                    queue the first message of that link a second time
    keep NAME a->b / late NAME     take the first message off the queue / deliver it after all
    propose a x / read a 7         a client's word; a refusal is printed
    hold a / durable a [index]     a's disk is slow / has caught up
    kill a / restart a             the others see the connection close / boot from its disk
    wipe a                         a dies without a word, and its disk is replaced by a blank one
    powercut a                     a dies without a word and loses what is not durable
    close a b / open a b           a sees the connection with b close / open
    transfer a b / stepdown a / full a / stall a / works a
    short a / roomy a              a's disk is short of room / has some
    run ms                         time passes, what is sent arrives at once
    tick ms                        time passes, messages stay queued
    queue / state                  what is on the way / where everybody stands
"""

from __future__ import annotations

from typing import Any

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.errors import RaftError
from raftmq.dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PrevFrame,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.dledger.group import Group, Member


def describe(message: Message) -> str:
    """One line a message."""
    link = f"{message.sender}->{message.to}"
    match message:
        case VoteRequest():
            kind = "pre-vote" if message.pre_vote else "vote"
            last = f"last {message.last_index}@{message.last_term}"
            how = " by transfer" if message.transfer else ""
            return f"{link} {kind}? term {message.term} {last}{how}"
        case AppendRequest():
            frames = " ".join(f"{f.index}@{f.term}" for f in message.frames)
            prev = f"after {message.prev_index}@{message.prev_term}"
            commit = f"commit {message.commit_index}"
            return f"{link} append term {message.term} {prev} [{frames}] {commit}"
        case AppendResponse():
            requested = f"term {message.term} for {message.request_term}"
            if message.success:
                standing = ", recovering" if message.recovering else ""
                return f"{link} appended {requested} match {message.match_index}{standing}"
            hint = f"try {message.conflict_index} after term {message.conflict_term}"
            return f"{link} refused {requested} at {message.prev_index}, {hint}"
        case Heartbeat():
            what = f"round {message.round} commit {message.commit_index}"
            what += " certified" if message.certified else ""
            return f"{link} heartbeat term {message.term} {what}"
        case HeartbeatResponse():
            requested = f"term {message.term} for {message.request_term}"
            has = f"durable {message.last_index} match {message.match_index}"
            has += ", recovering" if message.recovering else ""
            return f"{link} alive {requested} round {message.round} {has}"
        case TimeoutNow():
            return f"{link} timeout-now term {message.term}"
        case PrevFrame():
            return f"{link} prev_frame term {message.term} {message.index}@{message.index_term}"
        case VoteResponse(request_incarnation=0):
            what = "full" if message.granted else "no room"
            return f"{link} {what} term {message.term} for {message.request_term}"
        case _:
            kind = "pre-vote" if message.pre_vote else "vote"
            verdict = "granted" if message.granted else "refused"
            standing = ", recovering" if message.recovering else ""
            requested = f"term {message.term} for {message.request_term}"
            return f"{link} {kind} {verdict} {requested}{standing}"


class Script:
    """Runs commands against one group and collects what they print."""

    def __init__(self) -> None:
        self.group = Group("a")
        self.pocket: dict[str, Message] = {}
        self.lines: list[str] = []

    def run(self, text: str) -> str:
        """The script with its expected output replaced by what really came."""
        blocks = []
        for block in text.strip("\n").split("\n\n"):
            commands = block.split("\n----")[0]
            self.lines = []
            executed = False
            for line in commands.split("\n"):
                if line and not line.startswith("#"):
                    self.execute(line)
                    executed = True
            out = "\n".join([commands, "----", *self.lines]) if executed else commands
            blocks.append(out)
        return "\n\n".join(blocks) + "\n"

    def execute(self, line: str) -> None:
        command, *text = line.split()
        try:
            events = getattr(self, f"do_{command}")(*text)
        except RaftError as error:
            self.lines.append(f"{error.code}: {error}")
            return
        self.lines += events if events is not None else self.group.work()

    # -- the group --------------------------------------------------------------------------------

    def do_nodes(self, *words: str) -> None:
        names = [word for word in words if "=" not in word]
        values = dict(word.split("=") for word in words if "=" in word)
        settings: dict[str, Any] = {name: int(value) for name, value in values.items()}
        config = CoreConfig(**settings)
        self.group = Group("".join(names), config)

    def do_log(self, name: str, *words: str) -> None:
        terms = [int(word) for word in words if word.isdecimal()]
        values = dict(word.split("=") for word in words if "=" in word)
        term = int(values.get("term", terms[-1] if terms else 0))
        recovered = "recovering" not in words
        self.group.add(name, terms, HardState(term, values.get("vote"), recovered))

    def do_campaign(self, name: str) -> None:
        self.group.campaign(name)

    def do_tick(self, ms: str) -> list[str]:
        return self.group.tick(float(ms))

    def do_run(self, ms: str) -> list[str]:
        return self.group.run(float(ms))

    # -- messages ---------------------------------------------------------------------------------

    def _first(self, link: str) -> int:
        sender, to = link.split("->")
        for at, message in enumerate(self.group.queue):
            if (message.sender, message.to) == (sender, to):
                return at
        raise AssertionError(f"nothing is queued on {link}")

    def do_deliver(self, *words: str) -> list[str]:
        link = next((word for word in words if "->" in word), None)
        count = next((int(word) for word in words if "->" not in word), 1)
        lines: list[str] = []
        for _ in range(count):
            if not self.group.queue:
                return [*lines, "(nothing is on the way)"]
            at = 0 if link is None else self._first(link)
            message, arrived = self.group.deliver_one(at)
            lines.append(describe(message) + ("" if arrived else " (lost)"))
            lines += [f"  {event}" for event in self.group.work()]
        return lines

    def do_settle(self) -> list[str]:
        return self.group.settle()

    def do_cut(self, *links: str) -> None:
        for link in links:
            sender, to = link.split("->")
            self.group.dropped.add((sender, to))

    def do_heal(self) -> None:
        self.group.dropped.clear()

    def do_lose(self, link: str) -> None:
        while True:
            try:
                del self.group.queue[self._first(link)]
            except AssertionError:
                return

    def do_repeat(self, link: str) -> None:
        self.group.queue.append(self.group.queue[self._first(link)])

    def do_keep(self, name: str, link: str) -> list[str]:
        self.pocket[name] = self.group.queue.pop(self._first(link))
        return [describe(self.pocket[name])]

    def do_late(self, name: str) -> list[str]:
        message = self.pocket[name]
        self.group.inject(message)
        return [describe(message), *(f"  {event}" for event in self.group.work())]

    # -- clients, disks, processes ----------------------------------------------------------------

    def do_propose(self, name: str, payload: str) -> None:
        self.group[name].propose(payload.encode())

    def do_read(self, name: str, token: str) -> None:
        self.group[name].core.read_index(int(token))

    def do_hold(self, name: str) -> None:
        self.group[name].holding = True

    def do_durable(self, name: str, index: str = "") -> None:
        member = self.group[name]
        if not index:
            member.holding = False
        member.core.durable(int(index) if index else len(member.log))

    def do_kill(self, name: str) -> None:
        self.group.members[name].down = True
        for other in self.group.members.values():
            if other.name != name:
                other.core.peer_closed(name, self.group.now_ms)

    def do_powercut(self, name: str) -> None:
        """Dead without a word, and what was not durable is gone."""
        member = self.group[name]
        member.down = True
        member.holding = False
        del member.log[member.core.durable_index :]

    def do_wipe(self, name: str) -> None:
        member = self.group[name]
        member.down = True
        member.holding = False
        member.log.clear()
        member.saved = HardState(0, None, recovered=False)
        member.noted_recovered = False

    def do_restart(self, name: str) -> None:
        member = self.group[name]
        member.down = False
        member.now_ms = self.group.now_ms
        member.boot()
        for other in self.group.members.values():
            if other.name != name:
                other.core.peer_opened(name)

    def do_close(self, name: str, peer: str) -> None:
        self.group[name].core.peer_closed(peer, self.group.now_ms)

    def do_open(self, name: str, peer: str) -> None:
        self.group[name].core.peer_opened(peer)

    def do_transfer(self, name: str, target: str) -> None:
        self.group[name].core.transfer(target, self.group.now_ms)

    def do_stepdown(self, name: str) -> None:
        self.group[name].core.step_down("its disk failed")

    def do_full(self, name: str) -> None:
        self.group[name].core.disk_fails("its disk is full", takes_frames=False)

    def do_stall(self, name: str) -> None:
        self.group[name].holding = True
        self.group[name].core.disk_fails("its disk stalls")

    def do_short(self, name: str) -> None:
        self.group[name].core.election.is_willing = False

    def do_roomy(self, name: str) -> None:
        self.group[name].core.election.is_willing = True

    def do_works(self, name: str) -> None:
        member = self.group[name]
        member.holding = False
        member.core.disk_works()
        member.core.durable(len(member.log))

    # -- looking ----------------------------------------------------------------------------------

    def do_queue(self) -> list[str]:
        return [describe(message) for message in self.group.queue]

    def do_state(self) -> list[str]:
        return [self._state(member) for member in self.group.members.values()]

    def _state(self, member: Member) -> str:
        if member.down:
            return f"{member.name} down"
        core = member.core
        terms = " ".join(map(str, member.terms))
        return (
            f"{member.name} {core.role.value} term {core.term} vote {core.ballot.voted_for or '-'} "
            f"leader {core.leader or '-'} commit {core.commit_index} "
            f"durable {core.durable_index} log [{terms}]{'' if core.recovered else ' recovering'}"
        )
