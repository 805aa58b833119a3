"""A broker's peers prove that they have the group's secret; without one only loopback is open."""

import asyncio
import os
import subprocess
import sys

import pytest

from raftmq.broker.config import build_config
from raftmq.broker.errors import EngineError
from raftmq.broker.replication.peer_auth import make_gates, read_secret
from raftmq.dledger.transport.wire import Hello, encode_hello
from raftmq.ops.options import ConfigError, Setting
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic, log_bytes
from tests.waiting import until

SECRET = "sixteen bytes at least, of this group"
OTHER = "sixteen bytes at least, of another one"
RAFT = {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-10.0.0.1:40911", "brokerName": "g"}
MUTUAL = {
    "tlsServerMode": "enforcing",
    "tlsServerCertPath": "server.crt",
    "tlsServerNeedClientAuth": "require",
    "tlsServerTrustCertPath": "ca.crt",
}


def config(**values):
    return build_config([Setting(key, value, "test") for key, value in values.items()])


@pytest.mark.parametrize(
    "values",
    [
        RAFT,
        RAFT | {"dLegerPeers": "n0-127.0.0.1:40911", "dLegerBindAddress": "0.0.0.0"},
        RAFT | {"dLegerPeers": "n0-broker-1:40911"},
        {"bindAddress": "0.0.0.0"},
        {"bindAddress": "10.0.0.1", "brokerRole": "SYNC_MASTER"},
        {"aclEnable": "true"},  # then bindAddress is every address
        {"bindAddress": "10.0.0.1"} | MUTUAL | {"tlsServerNeedClientAuth": "optional"},
        {"bindAddress": "10.0.0.1"} | MUTUAL | {"tlsServerMode": "permissive"},
    ],
)
def test_public_replication_port_without_a_proof_is_not_opened(values):
    with pytest.raises(EngineError, match=r"port would listen on .*peerSecretFile"):
        make_gates(config(**values))


@pytest.mark.parametrize(
    "values",
    [
        RAFT | {"dLegerPeers": "n0-127.0.0.1:40911"},
        RAFT | {"dLegerPeers": "n0-[::1]:40911"},
        RAFT | {"dLegerBindAddress": "localhost"},
        RAFT | {"raftTlsMode": "enforcing", "raftTlsCertPath": "a", "raftTlsTrustCertPath": "b"},
        {"bindAddress": "127.0.0.1"},
        {"bindAddress": "10.0.0.1"} | MUTUAL,
        {"bindAddress": "10.0.0.1", "haAcceptUnprovenPeers": "true"},
        {"bindAddress": "10.0.0.1", "brokerRole": "SLAVE", "brokerId": "1"},
    ],
)
def test_loopback_certificates_and_explicit_keys_need_no_peer_secret(values):
    assert make_gates(config(**values)).all == ()


def test_peer_secret_requires_a_proof():
    gates = make_gates(config(**RAFT, peerSecret=SECRET))
    assert gates.raft is not None and not gates.raft.admissions.accepts_unproven
    assert gates.proof_required
    gates = make_gates(config(peerSecret=SECRET, haAcceptUnprovenPeers="true"))
    assert gates.master is not None and gates.master.admissions.accepts_unproven
    assert not gates.proof_required
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "peerSecret": SECRET}
    assert make_gates(config(**slave)).slave is not None
    assert make_gates(config(**slave, haAcceptUnprovenPeers="true")).slave is None


def test_peer_secret_file_readable_by_others_is_reported(tmp_path, caplog):
    path = tmp_path / "peer.secret"
    path.write_text(f"{SECRET}\n")
    os.chmod(path, 0o600)
    assert read_secret(config(peerSecretFile=str(path))) is not None
    assert "peer_secret_readable" not in caplog.text
    os.chmod(path, 0o644)
    assert read_secret(config(peerSecretFile=str(path))) is not None
    assert "peer_secret_readable" in caplog.text
    path.write_text("short")
    with pytest.raises(EngineError, match="at least 16 bytes") as raised:
        read_secret(config(peerSecretFile=str(path)))
    assert "short" not in str(raised.value)
    with pytest.raises(EngineError, match="No such file"):
        read_secret(config(peerSecretFile=str(tmp_path / "none")))
    assert read_secret(config()) is None


def test_wrong_peer_secrets_are_rejected_and_never_printed():
    with pytest.raises(ConfigError, match="at least 16 bytes") as raised:
        config(peerSecret="short one")
    assert "short one" not in str(raised.value)
    with pytest.raises(ConfigError, match="one of them"):
        config(peerSecret=SECRET, peerSecretFile="file")
    assert SECRET not in config(peerSecret=SECRET).properties_text()


def test_process_without_a_peer_secret_exits_with_status_2_and_names_keys(tmp_path):
    settings = (f"storePathRootDir={tmp_path}", "listenPort=0", "bindAddress=0.0.0.0")
    given = [part for setting in settings for part in ("--set", setting)]
    ended = subprocess.run(
        [sys.executable, "-m", "raftmq.broker.cli", *given],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2
    assert "mqbroker: cannot start: the HA port would listen on 0.0.0.0" in ended.stderr
    assert "peerSecretFile" in ended.stderr and "haAcceptUnprovenPeers" in ended.stderr
    assert not (tmp_path / "commitlog").exists()


# -- brokers -----------------------------------------------------------------------------------


async def heard(port, said):
    """All that a stranger hears in answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_raft_group_with_a_secret_answers_no_unproven_peer(tmp_path):
    async with Group(tmp_path, 3, peerSecret=SECRET) as group:
        leader = group.brokers[await group.leader()]
        assert (await group.send(leader, "Proven")).code == 0
        for name in group.names:
            broker = group.brokers[name]
            others = set(group.names) - {name}
            await until(lambda b=broker, peers=others: all(map(b.engine.links.is_open, peers)))
            assert b"" == await heard(group.ports[name], encode_hello(Hello("group-a", "n9", name)))
            assert broker.gates.raft.admissions.refused_count == 1
            assert broker.engine.failure is None


async def test_slave_with_a_proof_is_served(tmp_path):
    async with Classic(tmp_path, peerSecret=SECRET) as pair:
        await pair.followed()
        await pair.send(pair.master, "Proven")
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        assert pair.master.gates.master.admissions.unproven_count == 0


async def test_master_sends_its_log_to_no_unproven_slave(tmp_path):
    async with Classic(tmp_path, 0, role="ASYNC_MASTER", peerSecret=SECRET) as pair:
        await pair.send(pair.master, "Proven")
        for said in (bytes(8), bytes(16), b"RMQS" + bytes(60)):
            assert await heard(pair.ports["master"], said) == b""
        assert not pair.master.log.classic.master.links
        assert pair.master.gates.master.admissions.refused_count == 3


@pytest.mark.parametrize(
    ("own", "follows"),
    [
        ({"master": {"peerSecret": SECRET}}, False),
        ({"master": {"peerSecret": SECRET}, "slave1": {"peerSecret": OTHER}}, False),
        ({"slave1": {"peerSecret": SECRET}}, False),
        ({"slave1": {"peerSecret": SECRET, "haAcceptUnprovenPeers": "true"}}, True),
        ({"master": {"peerSecret": SECRET, "haAcceptUnprovenPeers": "true"}}, True),
    ],
)
async def test_unproven_peers_are_accepted_only_with_the_setting(tmp_path, caplog, own, follows):
    caplog.set_level("INFO")
    async with Classic(tmp_path, names=own, role="ASYNC_MASTER") as pair:
        await pair.send(pair.master, "Proven")
        if follows:
            await pair.followed()
            await pair.caught_up()
            return
        gates = [*pair.master.gates.all, *pair.slave.gates.all]
        await until(
            lambda: (
                sum(g.admissions.refused_count for g in gates) > 0
                or "master_not_reached" in caplog.text
            )
        )
        assert not pair.master.log.classic.master.links
        assert pair.slave.store.commitlog.max_offset == 0
