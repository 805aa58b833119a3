"""Which brokers a name server asks over HTTP, and where its requests go."""

import asyncio

import pytest

from raftmq.namesrv.http.reach import Reach, host_problem
from raftmq.namesrv.routes import THIS_MACHINE
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.connection import Connection
from tests.namesrv.http.test_trust import Impostor
from tests.namesrv.test_server import Caller
from tests.waiting import until

ASKED, REFUSED = "", None


@pytest.mark.parametrize(
    ("address", "peer", "signed", "reach", "host"),
    [
        ("10.0.0.1:80", "10.0.0.2", True, {}, ASKED),
        ("10.0.0.1:80", "10.0.0.1", False, {}, "10.0.0.1"),
        ("10.0.0.1:80", "10.0.0.2", False, {}, REFUSED),
        ("127.0.0.1:22", "10.0.0.2", False, {}, REFUSED),
        ("169.254.169.254:80", "10.0.0.2", False, {}, REFUSED),
        ("broker:80", "10.0.0.2", False, {}, "10.0.0.2"),  # whatever that name resolves to
        ("https://broker:80", "10.0.0.2", False, {}, "10.0.0.2"),
        ("localhost:80", "10.0.0.2", False, {}, "10.0.0.2"),
        ("broker:80", "", False, {}, REFUSED),
        ("127.0.0.1:80", THIS_MACHINE, False, {}, ASKED),
        ("localhost:80", THIS_MACHINE, False, {}, ASKED),
        ("[::1]:80", THIS_MACHINE, False, {}, ASKED),
        ("0.0.0.0:80", THIS_MACHINE, False, {}, REFUSED),
        ("10.255.255.1:80", THIS_MACHINE, False, {}, REFUSED),
        ("elsewhere.example:80", THIS_MACHINE, False, {}, "127.0.0.1"),
        ("10.0.0.1:80", "10.0.0.1", False, {"has_key": True}, REFUSED),
        ("10.0.0.1:80", "10.0.0.1", True, {"has_key": True}, ASKED),
        ("10.0.7.1:80", "10.0.0.2", False, {"allowed": ["10.0.7.0/24"]}, ASKED),
        ("10.0.8.1:80", "10.0.0.2", False, {"allowed": ["10.0.7.0/24"]}, REFUSED),
        ("Broker-A:80", "10.0.0.2", False, {"has_key": True, "allowed": ["broker-a"]}, ASKED),
        ("nonsense", "10.0.0.2", True, {}, REFUSED),
    ],
)
def test_reach_decides_the_host_of_a_broker_request(address, peer, signed, reach, host):
    contact = Reach(**reach).contact(address, peer, signed=signed)
    assert (contact.host if not contact.refused else None) == host


def test_malformed_reach_host_is_reported():
    assert host_problem("broker-a") == host_problem("10.1.0.0/16") == ""
    assert "10.1.0.1/16" in host_problem("10.1.0.1/16")


@pytest.mark.parametrize("keyed", [False, True])
async def test_unsigned_registration_causes_no_request_to_another_host(
    keyed, monkeypatch, tmp_path
):
    key = tmp_path / "key"
    key.write_text("a key of this cluster alone")
    key.chmod(0o600)
    config = NameServerConfig(
        "127.0.0.1", 0, http_port=0, registration_key_file=str(key) if keyed else "",
        registrations_must_be_signed=False,
    )  # fmt: skip
    connection_made = Connection.connection_made

    def from_elsewhere(connection, transport):
        connection_made(connection, transport)
        if not connection.address:  # it was accepted
            connection.peer_address = "192.0.2.7:1234"

    async with NameServer(config) as names, Impostor().listening() as victim:
        assert names.http is not None
        for local in (False, True):
            if not local:
                monkeypatch.setattr(Connection, "connection_made", from_elsewhere)
            caller = Caller(f"127.0.0.1:{names.port}")
            answer = await caller.register(
                "10.0.0.9:1", 0, broker_name="broker-x", http_address=victim.address
            )
            assert answer.code == 0
            monkeypatch.undo()
            if local and not keyed:
                await until(lambda: victim.arrived)  # the dashboard of a cluster without keys works
            else:
                look = await names.http.cluster.refresh()
                error = look["groups"][0]["brokers"][0]["error"]
                assert error.startswith("it is not asked: ") and "registrationKeyFile" in error
                names.http.cluster._changed.set()  # it follows the events of all brokers
                await asyncio.sleep(0.05)
                assert victim.arrived == []
            await caller.remoting.close()
            await until(lambda: not names.table.broker_count)
            names.http.cluster.forget("broker-x", "10.0.0.9:1")
