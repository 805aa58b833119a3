"""`mqbroker health` and `mqnamesrv health` against servers that run, and against none."""

import asyncio

import pytest
from click.testing import CliRunner

from raftmq.broker.health import health as broker_health
from raftmq.broker.health import warnings_of, why_not
from raftmq.dledger.transport.outbound import now_ms
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.health import health as namesrv_health
from raftmq.namesrv.server import NameServer
from raftmq.remoting import process_tls
from raftmq.remoting.blocking_request import ask
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import ConnectError, ConnectionLost, SendTimeout
from raftmq.remoting.fast_json import loads_object
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.certificates import Authority
from tests.present import present
from tests.waiting import until


async def run(command, address):
    return await asyncio.to_thread(
        CliRunner().invoke, command, ["--address", address, "--timeout", "60"]
    )


async def test_health_of_a_leader_and_of_a_stopped_broker(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        result = await run(broker_health, broker.address)
        assert (result.exit_code, result.output) == (0, f"{broker.address}: healthy\n")
    result = await run(broker_health, broker.address)
    assert result.exit_code == 1 and broker.address in result.output


async def test_health_of_a_name_server():
    config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
    server = NameServer(config)
    await server.start()
    address = server.address
    try:
        result = await run(namesrv_health, address)
        assert (result.exit_code, result.output) == (0, f"{address}: healthy\n")
    finally:
        await server.stop()
    assert (await run(namesrv_health, address)).exit_code == 1


async def test_health_warns_of_the_name_servers_expiring_certificate(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", days=13)
    config = NameServerConfig(
        bind="127.0.0.1",
        port=0,
        http_enable=True,
        http_port=0,
        tls_server_mode="permissive",
        tls_server_cert_path=cert,
        tls_server_key_path=key,
    )
    monkeypatch.delenv("RAFTMQ_TLS_CONFIG_FILE", raising=False)
    monkeypatch.setattr(process_tls, "RELOAD_S", 0.1)
    async with NameServer(config) as server, Client(present(server.http).address) as client:
        address = server.address
        result = await run(namesrv_health, address)
        ready = await client.get("/health/ready")
        (warning,) = ready.json["warnings"]
        assert warning.startswith("TLS: server: the certificate expires at 2")
        reported = f"{address}: healthy\n{address}: warning: {warning}\n"
        assert (result.exit_code, result.output) == (0, reported)
        assert (ready.status, ready.json["status"]) == (200, "ready")
        authority.issue("server")
        await until(lambda: not server.tls.expiring)
        result = await run(namesrv_health, address)
        assert (result.exit_code, result.output) == (0, f"{address}: healthy\n")
        assert (await client.get("/health/ready")).json["warnings"] == []


LEADS = {"raftRole": "leader", "raftLeaderReady": "true"}


@pytest.mark.parametrize(
    ("info", "warnings"),
    [
        (LEADS, []),
        (LEADS | {"raftForeign": "", "raftDiffers": ""}, []),
        (LEADS | {"raftForeign": "two processes say"}, ["two processes say"]),
        (
            LEADS | {"raftDiffers": "n1: clock +3600 s, maxMessageSize", "raftForeign": "n2"},
            ["n2", "not as this replica's: n1: clock +3600 s, maxMessageSize"],
        ),
        (
            {"tlsCertificatesExpire": "http: the certificate expired at 2026"},
            ["TLS: http: the certificate expired at 2026"],
        ),
    ],
)
def test_health_warnings_for_each_runtime_info(info, warnings):
    assert (why_not(info), warnings_of(info)) == ("", warnings)


async def test_health_warnings_do_not_change_the_exit_code(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        identity = broker.engine.identity
        identity.founders_differ("n9", "n9 names others", now_ms())
        result = await run(broker_health, broker.address)
        where = broker.address
        reported = f"{where}: healthy\n{where}: warning: n9 names others\n"
        assert (result.exit_code, result.output) == (0, reported)
        async with Client(broker.http.address) as client:
            ready = await client.get("/health/ready")
        assert (ready.status, ready.json["warnings"]) == (200, ["n9 names others"])


@pytest.mark.parametrize("command", [broker_health, namesrv_health])
def test_health_with_half_an_account_exits_with_status_2(command, monkeypatch):
    monkeypatch.setenv("RAFTMQ_ACCESS_KEY", "alone")
    monkeypatch.delenv("RAFTMQ_SECRET_KEY", raising=False)
    result = CliRunner().invoke(command, ["--address", "127.0.0.1:1"])
    assert result.exit_code == 2 and "credentials need an access key" in result.output


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"raftRole": "leader", "raftLeaderReady": "true"}, ""),
        ({"raftRole": "leader", "raftLeaderReady": "false"}, "not ready"),
        ({"raftRole": "follower", "raftLeader": "n1"}, ""),
        ({"raftRole": "follower", "raftLeader": ""}, "no leader"),
        (
            {"raftRole": "follower", "raftLeader": "n1", "raftTakesNoFrames": "its disk is full"},
            "takes no frames of its leader; its disk is full",
        ),
        ({"raftRole": "repairing"}, "repairing"),
        ({}, ""),
        ({"registrationRefused": "ns:1 answers 1: no"}, "in no route: ns:1 answers 1: no"),
        (
            {
                "raftRole": "pre_candidate",
                "raftForeign": "n2 is of group id ab",
                "raftUnreachable": "n1: another secret",
                "raftRecovering": "there is no vote file",
            },
            "is pre_candidate; n2 is of group id ab; n1: another secret; there is no vote file",
        ),
        ({"raftRole": "follower", "raftLeader": "n1", "raftForeign": "n2 is of group id ab"}, ""),
        (
            {"raftRole": "leader", "raftLeaderReady": "true", "registrationRefused": "no"},
            "in no route: no",
        ),
        ({"haConnected": "true", "haRefused": ""}, ""),
        ({"haConnected": "false", "haRefused": ""}, "no link"),
        ({"haConnected": "false", "haRefused": "another log"}, "another log"),
    ],
)
def test_health_criteria(info, reason):
    assert (reason in why_not(info)) if reason else why_not(info) == ""


@pytest.mark.parametrize(
    ("serve", "error"),
    [
        (lambda reader, writer: writer.close(), ConnectionLost),
        (lambda reader, writer: None, SendTimeout),
    ],
)
async def test_health_distinguishes_silent_and_unreachable_brokers(serve, error):
    writers = []

    async def accepted(reader, writer):
        writers.append(writer)
        serve(reader, writer)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        with pytest.raises(error):
            await asyncio.to_thread(ask, address, RemotingCommand.request(28), 0.2)
    finally:
        server.close()
        for writer in writers:
            writer.close()
            await writer.wait_closed()
    with pytest.raises(ConnectError):
        await asyncio.to_thread(ask, address, RemotingCommand.request(28), 0.2)


async def test_health_without_a_leader_reports_unreachable_peers_and_reasons(tmp_path):
    async with Group(tmp_path, 3) as group:
        first = await group.leader()
        broker = group.brokers[first]
        for name in group.names:
            if name != first:
                await group.kill(name)
        await until(lambda: not broker.roles.leading)
        answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        said = why_not(loads_object(answer.body)["table"])
        others = sorted(set(group.names) - {first})
        assert all(f"{name}: " in said for name in others), said
