"""No message that the peer protocol's bytes can say ends a replica, nor has it keep or send what
nobody could read again. A failing seed is replayed with HOSTILE_SEED=n in the environment."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raftmq.dledger.raft.configuration import (
    Configuration,
    GroupMember,
    MemberRole,
    encode_configuration,
)
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.errors import MessageRefused
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import (
    NUMBER_MAX,
    TERM_MAX,
    AppendOrder,
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.raft.repair import Outcome, RepairRequest, RepairResponse, ResponderState
from raftmq.dledger.raft.snapshot_install import InstallChunk, InstallOffer, InstallRequest
from raftmq.dledger.transport.wire import MessageReader, PeerMessage, WireError, encode_message
from raftmq.store.frame import Frame, seal_frame
from tests.dledger.group import Group, Member
from tests.dledger.members import Group as RealGroup

SEEDS = range(150)
MESSAGES_PER_SEED = 60
REAL_MESSAGES = 1_500
SEGMENT_SIZE_BYTES = 1 << 17
EDGES = (-1, 0, 1, TERM_MAX - 1, TERM_MAX, TERM_MAX + 1, 2**62 - 1, 2**62, 2**63 - 1, -(2**63))


class Liar:
    """Makes up messages of every kind, near what is true and at the limits of what can be said."""

    def __init__(
        self, rng: random.Random, core: RaftCore, log: LogIndex, senders: str | tuple[str, ...]
    ) -> None:
        self.rng = rng
        self.core = core
        self.log = log  # the core's
        self.senders = senders
        self.edges = rng.choice((0.0, 0.02, 0.2))  # else the last term is soon reached

    def message(self) -> PeerMessage:
        make = self.rng.choice(
            [
                self._append,
                self._append,
                self._append,
                lambda: self._fields(AppendResponse),
                lambda: self._fields(Heartbeat),
                lambda: self._fields(HeartbeatResponse),
                lambda: self._fields(VoteRequest),
                lambda: self._fields(VoteResponse),
                lambda: self._fields(TimeoutNow),
            ]
        )
        return make()

    def any_message(self) -> PeerMessage:
        """Of all kinds, also those that never come to a core."""
        if self.rng.random() < 0.6:
            return self.message()
        kind = self.rng.choice((RepairRequest, RepairResponse, InstallOffer, InstallChunk))
        return self._fields(kind if self.rng.random() < 0.8 else InstallRequest)

    def _fields(self, kind: Any) -> Any:
        """Each field by what its name says it is."""
        values: dict[str, object] = {}
        for name in kind.__dataclass_fields__:
            if name == "sender":
                values[name] = self.rng.choice(self.senders)
            elif name == "to":
                values[name] = self.core.node_id
            elif name in ("pre_vote", "transfer", "granted", "success") or (
                name == "recovering" and kind is AppendResponse
            ):
                values[name] = self.rng.random() < 0.5
            elif name in ("incarnation", "request_incarnation", "certified", "recovering"):
                values[name] = self.rng.choice((0, 1, self.core.ballot.incarnation, 2**63))
            elif name == "outcome":
                values[name] = self.rng.choice(list(Outcome))
            elif name == "responder":
                values[name] = self.rng.choice(list(ResponderState))
            elif name == "data":
                values[name] = b"".join(f.data for f in self._frames(self._index(), self._term()))
            elif "term" in name:
                values[name] = self._term()
            else:
                values[name] = self._index()
        return kind(**values)

    def _term(self) -> int:
        return self._near(self.core.term, self.core.last_term)

    def _index(self) -> int:
        core = self.core
        return self._near(core.last_index, core.commit_index, core.round, core.durable_index)

    def _near(self, *known: int) -> int:
        drawn = self.rng.random()
        if drawn < self.edges:
            return self.rng.choice(EDGES)
        return self.rng.choice(known) + self.rng.choice((-2, -1, 0, 0, 0, 1, 2))

    def _append(self) -> AppendRequest:
        rng, core = self.rng, self.core
        prev = self._index()
        log = self.log
        known = log.first_index - 1 <= prev <= log.last_index
        prev_term = log.term_at(prev) if known and rng.random() < 0.8 else self._term()
        term = core.term if rng.random() < 0.7 else self._term()
        frames = tuple(self._frames(prev, prev_term, rng.randrange(4)))
        sender = rng.choice(self.senders)
        return AppendRequest(sender, core.node_id, term, prev, prev_term, self._index(), frames)

    def _frames(self, prev: int, prev_term: int, count: int = 1) -> Iterator[Frame]:
        rng, log = self.rng, self.log
        end = log.end_of(prev) if log.first_index - 1 <= prev <= log.last_index else 0
        term = prev_term
        for index in range(prev + 1, prev + 1 + count):
            if not -(2**63) <= index < 2**63:
                return
            term = rng.choice((term, term, term + 1, self._term()))
            position = end if rng.random() < 0.8 else self._near(end, 1 << 16, 1 << 20)
            if not (-(2**63) <= term < 2**63 and -(2**63) <= position < 2**63):
                return
            kind = rng.choice((1, 2, 3, 4))
            payload = self._configuration() if kind == 4 else bytes(rng.randrange(40))
            frame = seal_frame(index, term, position, self._index() % 2**62, kind, 0, payload)
            end = frame.end
            yield frame

    def _configuration(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.2:
            return rng.randbytes(rng.randrange(30))
        names = rng.sample(["a", "b", "c", "n0", "n1", "n2", "zz"], rng.randrange(5))
        address = rng.choice(("127.0.0.1:1", "127.0.0.1:1", "nowhere", "h:0", "x" * 200 + ":1"))
        roles = list(MemberRole)
        members = tuple(GroupMember(n, address, i, rng.choice(roles)) for i, n in enumerate(names))
        return encode_configuration(Configuration(members, (), 9))


def decoded(message: PeerMessage) -> list[Any]:
    """Return the message as the other end decodes it; nothing where its decoder closes the link."""
    try:
        data = b"".join(encode_message(message))
    except (struct.error, AssertionError):
        return []  # nobody could send it
    try:
        return MessageReader(message.sender, message.to).receive_data(data)
    except WireError:
        return []


def segment_end(position: int) -> int:
    return (position // SEGMENT_SIZE_BYTES + 1) * SEGMENT_SIZE_BYTES


def follower(rng: random.Random) -> Member:
    member = Member("a", list("abc"), [1, 1, 2], HardState(3, None))
    member.core.step(Heartbeat("b", "a", 3, 0, 1), 0)
    return member


def blank(rng: random.Random) -> Member:
    return Member("a", list("abc"), [], HardState(0, None, recovered=False))


def leader(rng: random.Random) -> Member:
    group = Group("abc")
    group.elect("a")
    group["a"].propose(b"x")
    if rng.random() < 0.5:
        group.settle()
    return group["a"]


def provisional(rng: random.Random) -> Member:
    group = Group("abc")
    for name in "abc":
        group.add(name, [1, 1], HardState(1, None, recovered=False))
    group.elect_unready("a")
    return group["a"]


def candidate(rng: random.Random) -> Member:
    group = Group("abc")
    group.dropped = {("a", "b"), ("a", "c")}
    group.now_ms += 10_000
    group.campaign("a")
    if rng.random() < 0.5:
        group["a"].core.step(VoteResponse("b", "a", 0, 1, True, True, 1), group.now_ms)
    group.work()
    return group["a"]


def check(core: RaftCore, member: Member) -> None:
    """Check what has to be true of a replica after every message."""
    assert 0 <= core.term <= TERM_MAX
    assert member.saved.term <= TERM_MAX
    assert core.commit_index <= core.last_index == len(member.log)
    assert core.durable_index <= core.last_index <= NUMBER_MAX
    for one, other in pairwise(member.log):
        assert one.term <= other.term <= TERM_MAX, member.log
        assert one.end <= other.position, member.log
    assert core.last_term == (member.log[-1].term if member.log else 0)
    assert (core.role is Role.LEADER) == (core.leader == core.node_id)


@pytest.mark.parametrize("make", [follower, blank, leader, provisional, candidate])
@pytest.mark.parametrize("senders", [("b", "c"), ("zz",), ("b", "c", "zz")], ids="-".join)
def test_core_survives_every_encodable_message(
    make: Callable[[random.Random], Member], senders: tuple[str, ...]
) -> None:
    expected = os.environ.get("HOSTILE_SEED")
    refused = done = 0
    for seed in [int(expected)] if expected else SEEDS:
        rng = random.Random(f"{make.__name__} {senders} {seed}")
        member = make(rng)
        core = member.core
        core._following._segment_end = segment_end  # of a member's log
        liar = Liar(rng, core, member.index, senders)
        now_ms = core._now_ms
        for _ in range(MESSAGES_PER_SEED):
            now_ms += rng.choice((0, 0, 5, 100))
            for message in decoded(liar.message()):
                try:
                    core.step(message, now_ms)
                    done += 1
                except MessageRefused as error:
                    assert error.sender == message.sender
                    refused += 1
                except Exception as error:
                    error.add_note(f"HOSTILE_SEED={seed} {message}")
                    raise
            if rng.random() < 0.1:
                core.tick(now_ms)
            said = say(member, seed)
            check(core, member)
            assert all(decoded(answer) == [answer] for answer in said), (seed, said)
    assert done and (refused or senders == ("zz",) or expected), (done, refused)


def say(member: Member, seed: int) -> list[Message]:
    """Perform what the core wants; what it says."""
    try:
        member.work()
    except Exception as error:
        error.add_note(f"HOSTILE_SEED={seed}")
        raise
    said = [m for m in member.outbox if not isinstance(m, AppendOrder)]
    member.outbox.clear()
    member.events.clear()
    return said


async def test_member_survives_every_encodable_message(tmp_path: Path) -> None:
    """The same with files, repairs and refills: a member whose two peers lie, and a stranger."""
    seed = int(os.environ.get("HOSTILE_SEED", "1"))
    rng = random.Random(seed)
    group = RealGroup(tmp_path, segment_size_bytes=SEGMENT_SIZE_BYTES)
    node = group.nodes[0]
    try:
        await node.start()
        member, refused = node.member, 0
        liar = Liar(rng, member.core, member.log.index, ("n1", "n2", "zz"))
        for number in range(REAL_MESSAGES):
            if number % 300 == 299:  # what they said is on the disk, and is read again
                refused += member.links.refused
                await node.stop()
                await node.start()
                member = node.member
                liar.core = member.core
            for message in decoded(liar.any_message()):
                member.inbox.on_messages([message])
                assert member.failure is None, (seed, number, message)
            if number % 20 == 0:
                await group.until(lambda saver=member.parts.pump.saver: not saver.busy)  # type: ignore[misc]
        assert not node.fatal
        assert member.core.term <= TERM_MAX
        assert refused > 0
    finally:
        await group.__aexit__()
