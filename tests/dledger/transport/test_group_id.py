"""Of which group a replica is: who parts from whom, what is noted, and when."""

import asyncio
import errno
import logging
import random
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import raftmq.dledger.transport.group_id
import raftmq.dledger.transport.outbound
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.dledger.transport.group_id import (
    FOREIGN_MAX,
    FOREIGN_MS,
    GroupIdentity,
    Meeting,
    file_of,
)
from raftmq.dledger.transport.peer_info_message import PeerInfo
from raftmq.dledger.transport.transport import PeerAddress, PeerLinks
from raftmq.dledger.transport.wire import (
    VERSION,
    Hello,
    HelloAnswer,
    PeerMessage,
    decode_answer,
    encode_hello,
    encode_identity,
    encode_message,
)
from raftmq.store.disk import OsDisk
from tests.dledger.transport.test_transport import Net, Recorder, beat, dial
from tests.waiting import until

ONE, TWO = bytes(range(16)), bytes(range(16, 32))


def known(group_id: bytes) -> GroupIdentity:
    identity = GroupIdentity()
    identity.group_id = group_id
    return identity


def meeting(theirs: bytes, *, peer: str = "n1", dialled: bool = True) -> Meeting:
    return Meeting("n0", "h0:1", peer, "h1:2", theirs, dialled)


class Member(Recorder):
    """Passes on what is announced, as dledger.node.node does."""

    def __init__(self) -> None:
        super().__init__()
        self.links: PeerLinks | None = None
        self.announced = 0

    def on_messages(self, messages: list[PeerMessage]) -> None:
        for message in messages:
            if isinstance(message, PeerInfo):
                assert self.links is not None
                self.links.take_group_id(message.sender, message.group_id)
                self.announced += 1
        super().on_messages(messages)


class World(Net):
    """Nodes that know of which group they are; each peers list may have wrong addresses."""

    def __init__(self, count: int, root: Path) -> None:
        super().__init__(count)
        self.pool = ThreadPoolExecutor(1)
        self.root = root

    async def start_as(self, node: str, identity: GroupIdentity, *others: str) -> Member:
        seen = self.seen[node] = Member()
        sock, self.sockets[node] = self.sockets[node], None
        peers: dict[str, PeerAddress] = {name: self.peers[name] for name in (node, *others)}
        self.links[node] = PeerLinks(
            node, "g", peers, seen, random.Random(1), listen_socket=sock, identity=identity
        )
        seen.links = self.links[node]
        await self.links[node].start()
        return seen

    def empty(self, name: str) -> GroupIdentity:
        identity = GroupIdentity(file_of(OsDisk(str(self.root / name)), "raft"), lambda: True)
        identity.load()
        identity.start(self.pool)
        return identity

    async def close(self) -> None:
        identities = [links.local.identity for links in self.links.values()]
        await super().close()
        for identity in identities:
            await identity.stop()
        self.pool.shutdown()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(3, tmp_path)
    yield made
    await made.close()


def foreign(links: PeerLinks) -> list[str]:
    reported = links.group_status()["foreign"]
    assert isinstance(reported, list)
    return reported


async def test_replicas_of_two_groups_disconnect_and_report_it_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "raftmq.dledger.transport.group_id")
    await world.start_as("n0", known(ONE), "n1")
    await world.start_as("n1", known(TWO), "n0")
    links = world.links
    await until(lambda: min(links[name].refused for name in links) >= 4)  # attempts go on
    for name, other in (("n0", "n1"), ("n1", "n0")):
        text = links[name].last_error(other)
        for expected in (ONE.hex(), TWO.hex(), "dLegerPeers", str(world.peers[other].port)):
            assert expected in text, text
        assert str(world.peers[name].port) in text
        assert world.seen[name].opened == []
        assert not links[name].is_open(other)
        assert len(foreign(links[name])) == 2  # one it dialled, one that dialled it
    assert len(caplog.records) == 4


async def test_replicas_of_one_group_connect_with_and_without_a_known_group_id(
    world: World,
) -> None:
    first = await world.start_as("n0", known(ONE), "n1", "n2")
    await world.start_as("n1", known(ONE), "n0", "n2")
    await world.start_as("n2", GroupIdentity(), "n0", "n1")
    await first.until(lambda: sorted(first.opened) == ["n1", "n2"])
    assert foreign(world.links["n0"]) == []


async def test_links_older_than_the_group_ids_close_when_the_ids_differ(world: World) -> None:
    first = await world.start_as("n0", GroupIdentity(), "n1", "n2")
    second = await world.start_as("n1", GroupIdentity(), "n0", "n2")
    third = await world.start_as("n2", GroupIdentity(), "n0", "n1")
    for seen in (first, second, third):
        await seen.until(lambda seen=seen: len(seen.opened) == 2)  # type: ignore[misc]
    world.links["n0"].local.identity.applied(b"", ONE)
    world.links["n2"].local.identity.applied(b"", ONE)
    await second.until(lambda: second.announced == 2)
    assert world.links["n1"].is_open("n0") and not first.closed
    world.links["n1"].local.identity.applied(b"", TWO)
    await until(lambda: len(foreign(world.links["n0"])) == len(foreign(world.links["n2"])) == 2)
    assert not world.links["n1"].is_open("n0") and not world.links["n0"].is_open("n1")
    assert world.links["n0"].is_open("n2") and world.links["n2"].is_open("n0")


async def test_announced_group_id_of_another_group_closes_the_link(world: World) -> None:
    first = await world.start_as("n0", known(ONE), "n1")
    reader, writer = await dial(world, "n0")
    writer.write(encode_hello(Hello("g", "n1", "n0")) + encode_identity(b""))
    writer.write(b"".join(encode_message(PeerInfo("n1", "n0", group_id=TWO))))
    try:
        while await reader.read(100):
            pass
    except ConnectionResetError:
        pass  # aborted: just as closed
    await first.until(lambda: first.closed == ["n1"])
    assert "two groups of one name" in foreign(world.links["n0"])[0]
    writer.close()


async def test_empty_replica_joins_the_group_it_dials_and_rejects_the_other(world: World) -> None:
    """n0 and n1 are of two groups; n2 is empty, and its peers list has both."""
    await world.start_as("n0", known(ONE), "n2")
    await world.start_as("n1", known(TWO), "n2")
    identity = world.empty("n2")
    seen = await world.start_as("n2", identity, "n0", "n1")
    await seen.until(lambda: bool(seen.opened))
    chosen = identity.group_id
    assert chosen in (ONE, TWO)
    stranger = "n1" if chosen == ONE else "n0"
    own = "n0" if chosen == ONE else "n1"
    await until(lambda: len(foreign(world.links["n2"])) == 2)
    assert seen.opened == [own]
    assert not world.links[stranger].is_open("n2")
    assert file_of(OsDisk(str(world.root / "n2")), "raft").load() == chosen  # before it was opened
    again = world.empty("n2")
    assert again.group_id == chosen
    await again.stop()


async def test_dialler_of_an_empty_replica_does_not_set_its_group_id(world: World) -> None:
    """n1 of another group has the address of an empty founder whose own peer knows no id yet."""
    await world.start_as("n0", GroupIdentity(), "n2")
    identity = world.empty("n2")
    seen = await world.start_as("n2", identity, "n0")
    await world.start_as("n1", known(TWO), "n2")
    await until(lambda: "learns of which group" in world.links["n1"].last_error("n2"))
    assert seen.opened == ["n0"] and identity.group_id == b""
    world.links["n0"].local.identity.applied(b"", ONE)  # founded, with n2 in it
    identity.applied(b"", ONE)
    await until(lambda: foreign(world.links["n1"]))
    assert world.links["n2"].is_open("n0")


async def test_empty_replica_redials_after_its_group_gets_an_id(world: World) -> None:
    """As a new replica does that was started before it was made a member: nobody dials it yet."""
    identity = world.empty("n2")
    seen = await world.start_as("n2", identity, "n0")
    first = await world.start_as("n0", GroupIdentity())
    await seen.until(lambda: seen.opened == ["n0"])
    world.links["n0"].local.identity.applied(b"", ONE)
    world.links["n0"].set_peers({name: world.peers[name] for name in ("n0", "n2")})
    await first.until(lambda: first.opened == ["n2"])
    assert identity.group_id == ONE
    await until(lambda: world.links["n2"].is_open("n0"))
    assert seen.closed == ["n0"]  # once


async def test_non_member_with_a_peers_name_causes_no_repeated_redial(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        raftmq.dledger.transport.outbound, "now_ms", lambda: 1.0
    )  # all of it within ASK_AGAIN_MS
    identity = world.empty("n2")
    seen = await world.start_as("n2", identity, "n0")
    await world.start_as("n0", GroupIdentity(), "n2")  # has no id yet, and gets none
    await seen.until(lambda: seen.opened == ["n0"])
    refused = world.links["n2"].refused
    for number in range(20):
        _, writer = await dial(world, "n2")
        writer.write(encode_hello(Hello("g", "n0", "n2")) + encode_identity(TWO))
        await until(lambda number=number: world.links["n2"].refused > refused + number)
        writer.close()
    await seen.until(lambda: seen.opened == ["n0", "n0"])
    assert world.links["n2"].is_open("n0")
    assert identity.group_id == b""


async def test_empty_replica_without_peers_accepts_the_dialling_group(world: World) -> None:
    identity = world.empty("n2")
    await world.start_as("n2", identity)
    seen = await world.start_as("n0", known(ONE), "n2")
    await seen.until(lambda: seen.opened == ["n2"])
    assert identity.group_id == ONE


async def test_newer_replica_is_addressed_in_the_common_version(world: World) -> None:
    seen = await world.start_as("n0", known(ONE), "n1")
    reader, writer = await dial(world, "n0")
    writer.write(encode_hello(Hello("g", "n1", "n0", VERSION + 1)) + encode_identity(ONE))
    writer.write(b"".join(encode_message(beat("n1", "n0"))))
    await seen.until(lambda: len(seen.messages) == 1)
    decoded = decode_answer(await reader.readexactly(8))
    assert decoded is not None and decoded[0] == HelloAnswer("", VERSION)
    writer.close()


async def test_group_id_is_in_use_only_after_it_is_durable(world: World, tmp_path: Path) -> None:
    gate = threading.Event()
    identity = world.empty("n2")
    blocked = world.pool.submit(gate.wait, 60)  # the pool has one thread
    requested = [0]
    identity.subscribe(lambda: requested.__setitem__(0, requested[0] + 1))
    assert "first notes that it is of group id " + ONE.hex() in identity.judge(meeting(ONE), 0)
    assert "first notes that it is of group id " + ONE.hex() in identity.judge(meeting(TWO), 0)
    assert identity.group_id == b"" and requested == [0]
    gate.set()
    await until(lambda: identity.group_id)
    assert blocked.result() and requested == [1]
    assert identity.judge(meeting(ONE), 0) == ""
    assert "two groups of one name" in identity.judge(meeting(TWO), 0)
    await identity.stop()


async def test_group_id_save_waits_for_a_full_disk_and_fails_on_other_errors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raftmq.dledger.transport.group_id, "RETRY_S", 0.001)
    failed: list[str] = []

    class Trouble(SlotFile):
        errors = [errno.ENOSPC, errno.EDQUOT]  # noqa: RUF012 (of this test)

        def save(self, content: bytes) -> None:
            if self.errors:
                raise OSError(self.errors.pop(0), "as told")
            super().save(content)

    file = Trouble(OsDisk(str(world.root / "n0")), "raft/group")
    identity = GroupIdentity(file, lambda: True, lambda reason, error: failed.append(reason))
    identity.load()
    identity.start(world.pool)
    identity.applied(b"", ONE)
    assert identity.group_id == ONE  # what is applied counts at once
    await until(lambda: file_of(OsDisk(str(world.root / "n0")), "raft").load() == ONE)
    assert failed == [] and file.errors == []
    file.errors.append(errno.EIO)
    identity.applied(ONE, TWO)
    await until(lambda: failed)
    await identity.stop()


async def test_applied_group_id_is_kept_unless_another_is_recorded(world: World) -> None:
    identity = world.empty("n0")
    identity.applied(b"", ONE)
    identity.applied(ONE, TWO)  # a restored log, replayed by one that was never told
    assert identity.group_id == TWO
    await identity.stop()
    again = world.empty("n0")
    assert again.group_id == TWO
    await again.stop()
    noted = known(TWO)
    noted.applied(b"", ONE)  # a restored log, read by a replica of the restored group
    assert noted.group_id == TWO
    noted.applied(ONE, TWO)
    assert noted.group_id == TWO


async def test_damaged_group_id_file_is_read_as_empty_and_rewritten(world: World) -> None:
    identity = world.empty("n0")
    identity.applied(b"", ONE)
    await identity.stop()
    path = world.root / "n0" / "raft" / "group"
    await asyncio.to_thread(path.write_bytes, bytes(8192))
    damaged = world.empty("n0")
    assert damaged.group_id == b""
    damaged.applied(b"", ONE)
    await damaged.stop()
    again = world.empty("n0")
    assert again.group_id == ONE
    await again.stop()


def test_foreign_peers_are_remembered_for_a_bounded_time_and_count() -> None:
    identity = known(ONE)
    for number in range(FOREIGN_MAX + 5):
        identity.judge(meeting(TWO, peer=f"p{number}"), number)
    assert len(identity.foreign(0)) == FOREIGN_MAX
    assert identity.foreign(FOREIGN_MS + FOREIGN_MAX + 5) == []
    assert identity.judge(meeting(b""), 0) == identity.judge(meeting(ONE), 0) == ""
