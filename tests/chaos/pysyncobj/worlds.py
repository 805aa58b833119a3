"""One schedule on two worlds, stock pysyncobj 0.3.17 and our core, message by message.

A schedule is a function of a `World`. It decides the fate of messages and processes in neutral
words. Messages queued on a directed link are delivered, dropped, delayed or repeated; a node's time
advances (`tick`), it is killed, restarted, loses power; a client writes. Nothing else happens. Both
worlds then report the acknowledged writes, the leaders and the contents of the logs.

`StockWorld` runs SyncObj as shipped, with its FileJournal. Only its clock function is replaced by a
number, which the schedule advances; its code and its state are not touched. `CoreWorld` runs
RaftCore under tests/dledger/group.py's Member.

A kill leaves every written byte (the page cache outlives the process). A power cut leaves fsynced
bytes only. pysyncobj fsyncs nothing (test_disk.py counts), so that is nothing, plus anything the
kernel happened to write back (`written_back`).
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pysyncobj.pickle as wire
import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.errors import RaftError
from raftmq.dledger.raft.messages import Role
from tests.dledger.group import Member

PERIOD_S = 0.11  # a little more than the heartbeat period of either
ELECTION_S = 1.5  # more than the longest election time-out of either
ROUNDS = 6  # of an exchange, enough for all consequences of a message
FILES = ("journal", "meta")  # of a stock node


class World(ABC):
    """The verbs and the questions; `names` are the voters."""

    stock = False

    def __init__(self, names: str) -> None:
        self.names = list(names)
        self.now_s = 1000.0
        self.links: dict[tuple[str, str], deque[Any]] = defaultdict(deque)
        self.up: set[str] = set()
        self.acked: list[str] = []
        self.led: set[tuple[int, str]] = set()  # (term, name) of every leadership seen

    # -- messages -----------------------------------------------------------------------------

    def take(self, source: str, target: str, count: int | None = None) -> list[Any]:
        """The first `count` messages of a link (all by default), off the link and not delivered."""
        link = self.links[source, target]
        return [link.popleft() for _ in range(len(link) if count is None else count) if link]

    def drop(self, source: str, *targets: str) -> None:
        """Drop the messages queued on these links, as a closed connection does."""
        for target in targets:
            self.links[source, target].clear()

    def give(self, source: str, target: str, messages: Sequence[Any]) -> None:
        """Deliver these messages now."""
        for message in messages:
            if target in self.up:
                self._hand(source, target, message)
                self._look()

    def deliver(self, source: str, target: str, count: int | None = None) -> None:
        """Deliver the first `count` messages of a link, in order; all that are there by default."""
        self.give(source, target, self.take(source, target, count))

    def repeat(self, source: str, target: str) -> None:
        """The first message of the link is there twice."""
        self.links[source, target].appendleft(self.links[source, target][0])

    def exchange(self, *names: str, rounds: int = ROUNDS) -> None:
        """Deliver everything among these nodes, in order, with all consequences."""
        for _ in range(rounds):
            for source in names:
                for target in names:
                    if source != target:
                        self.deliver(source, target)

    def forget(self, name: str) -> None:
        """All that is on the links of this node is gone."""
        for link, queue in self.links.items():
            if name in link:
                queue.clear()

    # -- time ---------------------------------------------------------------------------------

    def step(self, name: str) -> None:
        """A heartbeat period passes, and this node ticks."""
        self.now_s += PERIOD_S
        self.tick(name)

    def tick(self, name: str) -> None:
        """This node looks at the clock."""
        if name in self.up:
            self._tick(name)
            self._look()

    def beat(self, leader: str, *others: str, times: int = 3) -> None:
        """Heartbeat periods of a leader, with everything among these nodes arriving."""
        for _ in range(times):
            self.step(leader)
            self.exchange(leader, *others)
            for other in others:
                self.tick(other)
            self.exchange(leader, *others)
            self.tick(leader)

    def elect(self, name: str, *voters: str) -> bool:
        """Nobody was heard of for an election time-out, this node notices first, and the words
        between it and these voters arrive until it leads. Whether it does."""
        self.now_s += ELECTION_S
        self.tick(name)
        for _ in range(ROUNDS):
            for voter in voters:
                self.deliver(name, voter, len(self.links[name, voter]))
            for voter in voters:
                self.deliver(voter, name)
            if self.leads(name):
                return True
        return False

    def elect_one_of(self, *names: str) -> str:
        """The first of these that can make itself the leader of all of these, and is ready."""
        for _ in range(8):
            for name in names:
                others = [n for n in names if n != name]
                if self.elect(name, *others):
                    self.beat(name, *others, times=6)
                    if self.leads(name):
                        return name
        raise AssertionError(f"nobody leads {names}")

    # -- processes ----------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """kill -9. Its sent messages stay on its links; the connections close."""
        self.up.discard(name)
        self._crash(name)
        for other in self.names:
            self.links[other, name].clear()
            if other in self.up:
                self.disconnect(other, name)

    def restart(self, name: str) -> None:
        """The process is started from its disk, and connected to all living nodes."""
        self._boot(name)
        self.up.add(name)
        for other in self.names:
            if other != name and other in self.up:
                self.connect(name, other)
                self.connect(other, name)
        self._look()

    def power_cut(self, name: str, written_back: Sequence[str] = ()) -> None:
        """The machine loses power without notice, and unsynced data is gone, except for data that
        the kernel had `written_back` ("journal", "meta")."""
        self.up.discard(name)
        self._crash(name)
        self.forget(name)
        self._lose_unsynced(name, written_back)

    # -- questions ----------------------------------------------------------------------------

    def lost(self, name: str) -> list[str]:
        """Return the acknowledged writes that are missing in this node's log."""
        held = set(self.values(name))
        return [value for value in self.acked if value not in held]

    def leaders(self) -> list[str]:
        """Return the nodes that take themselves for the leader, in any term."""
        return [name for name in self.names if name in self.up and self.leads(name)]

    def goes_on(self, leader: str) -> bool:
        """Whether a write to this leader is acknowledged, with everybody up and connected."""
        others = [name for name in self.names if name != leader and name in self.up]
        self.write(leader, "one more")
        self.beat(leader, *others, times=6)
        return "one more" in self.acked

    def terms_led_twice(self) -> list[int]:
        """Terms with more than one leader."""
        terms = [term for term, _ in self.led]
        return sorted({term for term in terms if terms.count(term) > 1})

    def _look(self) -> None:
        for name in self.leaders():
            self.led.add((self.term(name), name))

    # -- a world's own operations ----------------------------------------------------------------

    @abstractmethod
    def write(self, name: str, value: str, size_bytes: int = 0) -> None:
        """A client asks this node to append `value`; it is in the log if the node leads."""

    @abstractmethod
    def connect(self, name: str, other: str) -> None: ...

    @abstractmethod
    def disconnect(self, name: str, other: str) -> None:
        """`name` sees its connection to `other` close."""

    @abstractmethod
    def leads(self, name: str) -> bool: ...

    @abstractmethod
    def leader_of(self, name: str) -> str | None:
        """Return the leader in this node's view."""

    @abstractmethod
    def term(self, name: str) -> int: ...

    @abstractmethod
    def commit(self, name: str) -> int:
        """Its commit index, counted in entries of its own log."""

    @abstractmethod
    def values(self, name: str) -> list[str]:
        """The values in its log, in order."""

    @abstractmethod
    def applied(self, name: str) -> list[str]:
        """The values in its replicated state, in order."""

    @abstractmethod
    def hold(self, name: str) -> None:
        """From now on this node's disk is slow, and none of its writes becomes durable."""

    @abstractmethod
    def _hand(self, source: str, target: str, message: Any) -> None: ...

    @abstractmethod
    def _tick(self, name: str) -> None: ...

    @abstractmethod
    def _boot(self, name: str) -> None: ...

    @abstractmethod
    def _crash(self, name: str) -> None: ...

    @abstractmethod
    def _lose_unsynced(self, name: str, written_back: Sequence[str]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


# -- pysyncobj ------------------------------------------------------------------------------------


class WorldTransport(Transport):
    """The public Transport seam. Sent messages are on the world's links, pickled, as on TCP."""

    def __init__(self, world: StockWorld, name: str) -> None:
        super().__init__(None, Node(name), [])
        self._world = world
        self._name = name

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._world.links[self._name, node.id].append(wire.dumps(message))
        return True


class Log(SyncObj):
    """The replicated state is a list."""

    def __init__(self, name: str, names: Sequence[str], conf: SyncObjConf, transport: Transport):
        self.items: list[str] = []
        others = [Node(other) for other in names if other != name]
        super().__init__(Node(name), others, conf, transport=transport)

    @replicated
    def append(self, text: str) -> None:
        self.items.append(text)


class StockWorld(World):
    """Stock SyncObj. `options` are SyncObjConf's; {name} in a text is replaced by the node's."""

    stock = True

    def __init__(self, root: Path, names: str = "abc", **options: Any) -> None:
        super().__init__(names)
        self.root = root
        self.options = {"journalFile": "{name}.journal"} | options
        self.nodes: dict[str, Log] = {}
        self.transports: dict[str, WorldTransport] = {}
        pysyncobj.syncobj.monotonicTime = lambda: self.now_s  # put back by the fixture
        for name in self.names:
            self.restart(name)

    def write(self, name: str, value: str, size_bytes: int = 0) -> None:
        text = value + "." * size_bytes
        self.nodes[name].append(text, callback=functools.partial(self._answered, value))
        self.tick(name)

    def _answered(self, value: str, _: object, error: int) -> None:
        if error == 0:
            self.acked.append(value)

    def connect(self, name: str, other: str) -> None:
        self.transports[name]._onNodeConnected(Node(other))

    def disconnect(self, name: str, other: str) -> None:
        self.transports[name]._onNodeDisconnected(Node(other))

    def leads(self, name: str) -> bool:
        return bool(self.nodes[name]._isLeader())

    def leader_of(self, name: str) -> str | None:
        leader = self.nodes[name]._getLeader()
        return None if leader is None else str(leader.id)

    def term(self, name: str) -> int:
        return int(self.nodes[name].raftCurrentTerm)

    def commit(self, name: str) -> int:
        return int(self.nodes[name].raftCommitIndex)

    def entries(self, name: str) -> list[tuple[bytes, int, int]]:
        """(command, index, term)."""
        return list(self.nodes[name]._SyncObj__raftLog[:])

    def values(self, name: str) -> list[str]:
        return [
            wire.loads(command[1:])[1][0].rstrip(".")
            for command, _, _ in self.entries(name)
            if command[:1] == b"\0"  # a call, not a no-op
        ]

    def applied(self, name: str) -> list[str]:
        return [text.rstrip(".") for text in self.nodes[name].items]

    def hold(self, name: str) -> None:
        """Nothing it writes becomes durable anyway."""

    def file(self, name: str, which: str) -> Path:
        """`which` is one of FILES."""
        path = Path(self._option(name, "journalFile"))
        return path if which == "journal" else Path(f"{path}.meta")

    def _option(self, name: str, key: str) -> Any:
        value = self.options[key]
        if isinstance(value, str) and "{name}" in value:
            return str(self.root / value.format(name=name))
        return value

    def _hand(self, source: str, target: str, message: bytes) -> None:
        self.transports[target]._onMessageReceived(Node(source), wire.loads(message))

    def _tick(self, name: str) -> None:
        self.nodes[name].doTick(0)

    def _boot(self, name: str) -> None:
        options = {key: self._option(name, key) for key in self.options}
        self.transports[name] = WorldTransport(self, name)
        conf = SyncObjConf(autoTick=False, **options)
        self.nodes[name] = Log(name, self.names, conf, self.transports[name])

    def _crash(self, name: str) -> None:
        self.nodes.pop(name).destroy()  # closes the files; writes nothing that was not written
        del self.transports[name]

    def _lose_unsynced(self, name: str, written_back: Sequence[str]) -> None:
        for which in FILES:
            if which not in written_back:
                self.file(name, which).unlink(missing_ok=True)

    def close(self) -> None:
        for name in list(self.nodes):
            self._crash(name)


# -- our core -------------------------------------------------------------------------------------


class CoreWorld(World):
    """RaftCore. A node's disk is its Member's log and hard state; it syncs every write at once,
    unless it must `hold` like a slow disk."""

    def __init__(self, names: str = "abc", append_bytes_max: int = 64 << 10) -> None:
        super().__init__(names)
        self.config = CoreConfig(append_bytes_max=append_bytes_max)
        self.members: dict[str, Member] = {}
        self._proposed: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
        for name in self.names:
            self.restart(name)

    @property
    def now_ms(self) -> float:
        return self.now_s * 1000

    def write(self, name: str, value: str, size_bytes: int = 0) -> None:
        member = self.members[name]
        if not member.core.leader_ready or not member.core.can_propose:
            return  # rejected, so certainly not stored
        frame = member.next_frame((value + "." * size_bytes).encode())
        try:
            member.core.propose(frame)
        except RaftError:
            return
        self._proposed[name][frame.index] = (frame.term, value)
        self._work(name)

    def hold(self, name: str) -> None:
        self.members[name].holding = True

    def connect(self, name: str, other: str) -> None:
        self.members[name].core.peer_opened(other)
        self._work(name)

    def disconnect(self, name: str, other: str) -> None:
        self.members[name].core.peer_closed(other, self.now_ms)
        self._work(name)

    def leads(self, name: str) -> bool:
        return self.members[name].core.role is Role.LEADER

    def leader_of(self, name: str) -> str | None:
        return self.members[name].core.leader

    def term(self, name: str) -> int:
        return self.members[name].core.term

    def commit(self, name: str) -> int:
        return self.members[name].core.commit_index

    def values(self, name: str) -> list[str]:
        payloads = [bytes(frame.payload).decode() for frame in self.members[name].log]
        return [text.rstrip(".") for text in payloads if text]

    def applied(self, name: str) -> list[str]:
        member = self.members[name]
        payloads = [bytes(f.payload).decode() for f in member.log[: member.core.commit_index]]
        return [text.rstrip(".") for text in payloads if text]

    def _hand(self, source: str, target: str, message: Any) -> None:
        self.members[target].core.step(message, self.now_ms)
        self._work(target)

    def _tick(self, name: str) -> None:
        self.members[name].core.tick(self.now_ms)
        self._work(name)

    def _work(self, name: str) -> None:
        member = self.members[name]
        member.now_ms = self.now_ms
        member.work()
        for message in member.outbox:
            self.links[name, message.to].append(message)
        member.outbox.clear()
        member.events.clear()
        proposed = self._proposed[name]
        for index in [index for index in proposed if index <= member.core.commit_index]:
            term, value = proposed.pop(index)
            if member.log[index - 1].term == term:
                self.acked.append(value)

    def _boot(self, name: str) -> None:
        member = self.members.get(name)
        if member is None:
            member = Member(name, self.names, config=self.config, seed=ord(name))
            self.members[name] = member
        member.now_ms = self.now_ms
        member.down = False
        member.holding = False
        member.boot()
        self._proposed[name].clear()

    def _crash(self, name: str) -> None:
        self.members[name].down = True
        self.members[name].outbox.clear()

    def _lose_unsynced(self, name: str, written_back: Sequence[str]) -> None:
        member = self.members[name]
        del member.log[member.core.durable_index :]

    def close(self) -> None:
        """Nothing is open."""


def sync_calls(monkeypatch: Any) -> list[str]:
    """Every fsync and fdatasync of this process from now on, by name."""
    calls: list[str] = []
    for name in ("fsync", "fdatasync", "sync"):
        real = getattr(os, name)

        def counted(*args: int, _name: str = name, _real: Any = real) -> None:
            calls.append(_name)
            _real(*args)

        monkeypatch.setattr(os, name, counted)
    return calls
