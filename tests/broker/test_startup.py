"""A broker claims its store and ports before it opens anything, and gives them back."""

import asyncio
import logging
import random
import socket
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftmq.broker.broker import open_broker
from raftmq.broker.cli import main
from raftmq.broker.config import build_config
from raftmq.broker.startup import Claim
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.ops.options import Setting
from raftmq.store.errors import StoreError
from raftmq.store.identity import StoreIdentity, WrongIdentity, read_identity
from raftmq.store.record import decode_record
from raftmq.store.store_lock import StoreInUse, lock_store
from tests.archives import unpack
from tests.present import present
from tests.steadydisk import SteadyDisk
from tests.store.make import drained
from tests.store.test_store_lock import digest
from tests.waiting import until

FIXTURES = Path(__file__).parents[1] / "fixtures"


def free_port():
    """Below what the system gives to those that ask for any port."""
    held = HeldPorts("127.0.0.1")
    (port,) = held.choose(1, random.Random())
    held.close()
    return port


def config_of(root, mode="raft", **changes):
    values = {
        "brokerName": "group-a",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "1048576",
        "maxMessageSize": "65536",
        "electionTimeoutMinMs": "150",
        "electionTimeoutMaxMs": "300",
    }
    if mode == "raft":
        values |= {"enableDLegerCommitLog": "true", "dLegerPeers": f"n0-127.0.0.1:{free_port()}"}
    values |= {key: str(value) for key, value in changes.items()}
    return build_config([Setting(key, value, "test") for key, value in values.items()])


@pytest.mark.parametrize(
    ("host", "bind", "is_told"),
    [
        ("nodea", "", True),
        ("nodea", "127.0.0.1", False),
        ("localhost", "", False),
        ("127.0.0.1", "", False),
    ],
)
def test_peer_host_that_resolves_to_loopback_is_reported(
    tmp_path, monkeypatch, caplog, host, bind, is_told
):
    """As installers write it into /etc/hosts: the others resolve it to where nobody listens."""
    resolve, port = socket.getaddrinfo, free_port()

    def resolved(name, *rest, **more):
        return resolve("127.0.1.1" if name == "nodea" else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    peers = f"n0-{host}:{port};n1-nodeb:{port};n2-nodec:{port}"
    config = config_of(tmp_path, dLegerPeers=peers, dLegerSelfId="n0", dLegerBindAddress=bind)
    claim = Claim(config, SteadyDisk(config.store_path_root_dir), None, replicates=True)
    try:
        claim.take()
    finally:
        claim.release()
    assert ("replication_on_loopback host=nodea addresses=127.0.1.1" in caplog.text) is is_told


async def broker_of(config, **more):
    return await open_broker(config, SteadyDisk(config.store_path_root_dir), **more)


async def run(config, **more):
    """Start a broker, let it lead, stop it in order."""
    broker = await broker_of(config, **more)
    await broker.start()
    await until(lambda: broker.roles.leading)
    await broker.stop()


async def refused(config, error, words, **more):
    with pytest.raises(error, match=words):
        await broker_of(config, **more)


def state_of(store):
    """Of everything but the lock file, which its owner writes."""
    return {path.name: digest(path) for path in sorted(store.iterdir()) if path.name != "lock"}


@pytest.mark.parametrize("mode", ["raft", "classic"])
async def test_two_brokers_in_one_process_exclude_each_other(tmp_path, mode):
    config = config_of(tmp_path, mode)
    first = await broker_of(config)
    await first.start()
    await refused(config_of(tmp_path, mode), StoreInUse, f"mqbroker {config.node_name} of group-a")
    with pytest.raises(StoreInUse):  # the second's stop let go of nothing
        lock_store(str(tmp_path), "the test")
    await first.stop()
    lock_store(str(tmp_path), "the test").release()
    await run(config)


async def test_borrowed_store_lock_is_not_released(tmp_path):
    """`broker.cli` keeps it while a broker begins anew in the place of another."""
    lock = lock_store(str(tmp_path), "the process")
    await run(config_of(tmp_path), lock=lock)
    with pytest.raises(StoreInUse, match="the process"):
        lock_store(str(tmp_path), "another")
    lock.release()


@pytest.mark.parametrize(
    ("mode", "key", "words"),
    [
        ("raft", "listenPort", "bindAddress=127.0.0.1 listenPort=PORT: .*in use"),
        ("raft", "httpPort", "httpBindAddress=127.0.0.1 httpPort=PORT: .*in use"),
        ("raft", "httpHealthPort", "httpHealthPort=PORT: .*in use"),
        ("raft", "dLegerPeers", "dLegerPeers=n0-127.0.0.1:PORT: .*in use"),
        ("classic", "haListenPort", "bindAddress=127.0.0.1 haListenPort=PORT: .*in use"),
    ],
)
async def test_used_port_ends_the_start_before_any_change(tmp_path, mode, key, words):
    store = tmp_path / "store"
    await run(config_of(store, mode))
    before = state_of(store)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        value = f"n0-127.0.0.1:{port}" if key == "dLegerPeers" else port
        await refused(
            config_of(store, mode, **{key: value}), OSError, words.replace("PORT", str(port))
        )
    assert state_of(store) == before
    await run(config_of(store, mode))
    assert state_of(store) != before


async def test_new_store_records_its_identity_and_an_old_one_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "raftmq.broker")
    config = config_of(tmp_path)
    own = StoreIdentity("raft", "group-a", "n0", config.mapped_file_size_commit_log)

    def told():
        result = [(r.levelname, r.getMessage().split()[0]) for r in caplog.records]
        caplog.clear()
        return [one for one in result if one[1].startswith("store_")]

    await run(config_of(tmp_path))
    assert told() == [("INFO", "store_noted")]
    (tmp_path / "identity").unlink()  # as a store has it that an earlier program made
    await run(config_of(tmp_path))
    assert told() == [("WARNING", "store_adopted")]
    assert read_identity(SteadyDisk(str(tmp_path))) == own
    await run(config_of(tmp_path))
    assert told() == []


async def test_store_belongs_to_one_node_of_one_group(tmp_path):
    await run(config_of(tmp_path))
    before = state_of(tmp_path)
    peers = f"n0-127.0.0.1:{free_port()};n1-127.0.0.1:{free_port()}"
    for changes in (
        {"dLegerPeers": peers, "dLegerSelfId": "n1"},
        {"brokerName": "group-b"},
        {"dLegerGroup": "group-b"},
        {"enableDLegerCommitLog": "false"},
    ):
        await refused(config_of(tmp_path, **changes), WrongIdentity, "node n0 of the Raft group")
    assert state_of(tmp_path) == before
    # What clients call the group may change, and where its members are.
    await run(config_of(tmp_path, dLegerGroup="group-a", brokerName="other"))


async def test_store_keeps_its_segment_size(tmp_path):
    """A first segment that holds something would grow, and what comes next stand elsewhere than
    its peers have it. A size that no log was opened with binds nobody."""
    strange = tmp_path / "commitlog" / "strange"
    strange.parent.mkdir()
    strange.touch()
    too_large = config_of(tmp_path, mappedFileSizeCommitLog=str(1 << 22))
    await refused(too_large, StoreError, "not a segment")
    strange.unlink()
    wrong = config_of(tmp_path, mappedFileSizeCommitLog=str(1 << 21))
    broker = await broker_of(wrong)  # nothing came: a replica that was only begun
    await broker.stop()
    assert not list(strange.parent.iterdir())
    await run(config_of(tmp_path))
    before = state_of(tmp_path)
    for size in (1 << 19, 1 << 21):
        other = config_of(tmp_path, mappedFileSizeCommitLog=str(size))
        await refused(other, WrongIdentity, "set mappedFileSizeCommitLog=1048576")
    assert state_of(tmp_path) == before
    await run(config_of(tmp_path))


async def test_classic_store_keeps_its_broker_name_in_any_role(tmp_path):
    await run(config_of(tmp_path, "classic"))
    broker = await broker_of(config_of(tmp_path, "classic", brokerRole="SLAVE", brokerId=3))
    await broker.start()  # its master was lost and came back elsewhere
    await broker.stop()
    await run(config_of(tmp_path, "classic", brokerRole="SYNC_MASTER"))
    wrong = config_of(tmp_path, "classic", brokerName="group-b")
    await refused(wrong, WrongIdentity, "the classic broker group-a")


async def test_failed_start_opens_no_store(tmp_path):
    """The lock's text says whether a broker of ours was the last one that opened it."""
    config, lock = config_of(tmp_path, "classic"), tmp_path / "lock"
    await run(config)
    assert lock.read_bytes() == b"ours"
    for text in (b"ours", b"lock"):
        lock.write_bytes(text)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            await refused(config_of(tmp_path, "classic", listenPort=port), OSError, "in use")
        assert lock.read_bytes() == text
    await run(config)
    assert lock.read_bytes() == b"ours"


async def test_full_disk_during_the_identity_record_does_not_end_a_start(tmp_path, caplog):
    class Full(SteadyDisk):
        def rename(self, source, target):
            if target == "identity":
                raise OSError(28, "No space left on device")
            super().rename(source, target)

    config = config_of(tmp_path)
    broker = await open_broker(config, Full(str(tmp_path)))
    await broker.start()
    await broker.stop()
    assert "store_identity_not_noted" in caplog.text
    await run(config)
    assert read_identity(SteadyDisk(str(tmp_path))) is not None


async def test_store_of_apaches_3_2_is_served_and_stays_readable_for_its_broker(tmp_path):
    """A long test of tests.interop gives such a store back to Apache's broker."""
    with tarfile.open(FIXTURES / "apache-3.2.6-master.tar.xz") as archive:
        unpack(archive, tmp_path)
    root = tmp_path / "store"
    before = {path.name: path.read_bytes() for path in (root / "index").iterdir()}
    sizes = {"mappedFileSizeCommitLog": 262_144, "brokerName": "old", "brokerRole": "ASYNC_MASTER"}
    config = config_of(root, "classic", haListenPort=0, **sizes)
    for _ in range(2):
        broker = await open_broker(config, SteadyDisk(str(root)))
        await broker.start()
        state, store = broker.state, broker.store
        found = drained(store.derived.query("Old", "java-7", 64, 0, 1 << 62)).records
        ends = [present(store.queues.queue("Old", number)).max_offset for number in range(4)]
        topic, group = state.topics.get("Old"), state.groups.get("reader")
        offsets = [state.offsets.get("Old", "old-group", number) for number in range(4)]
        await broker.stop()
        assert [decode_record(data).properties.count(b"java-7") for data in found] == [1]
        assert sum(ends) == 40
        assert offsets == [3] * 4
        assert (present(topic).write_queue_count, present(group).retry_times_max) == (4, 16)
        assert {path.name: path.read_bytes() for path in (root / "index").iterdir()} == before


# ---- tools ------------------------------------------------------------------------------------


async def told(arguments):
    """`mqbroker` with these, in a thread: it has a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def test_tools_are_rejected_while_a_store_is_in_use(tmp_path):
    """`backup` of a stopped replica reads; what it reads would change under it."""
    store = tmp_path / "store"
    await run(config_of(store))
    given = ["-c", str(tmp_path / "broker.conf")]
    text = config_of(store).properties_text()
    (tmp_path / "broker.conf").write_text(text)
    backup, new = tmp_path / "backup", tmp_path / "new"
    taken = await told(["backup", str(backup), *given])
    assert taken.exit_code == 0, taken.output
    members = ["--peers", "n0-127.0.0.1:40911"]
    commands = {
        store: ["backup", str(backup), *given],
        new: ["restore", str(backup), "--into", str(new), *members],
    }
    for directory, command in commands.items():
        lock = lock_store(str(directory), "a broker")
        before = digest(directory)
        done = await told(command)
        assert (done.exit_code, digest(directory)) == (75, before), done.output
        assert "is in use by a broker" in done.output
        lock.release()
        done = await told(command)
        assert done.exit_code == 0, done.output
        lock_store(str(directory), "the test").release()
