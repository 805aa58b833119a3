"""The process: TLS, accounts, bounds, HTTP, command line."""

import asyncio
import hashlib
import hmac
import os
import signal
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from click.testing import CliRunner

from raftmq.client.instance import ClientInstance
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.ops.options import ConfigError
from raftmq.proxy import server
from raftmq.proxy.cli import main
from raftmq.proxy.config import ProxyConfig, load
from raftmq.proxy.health import health
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.server import ProxyServer
from raftmq.remoting import process_tls
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.process_tls import ProcessTls
from tests.certificates import Authority
from tests.instances import instances_of
from tests.ops.scrape import Scrape
from tests.ports import bound
from tests.present import present
from tests.proxy.world import PROXY, WAITS, Caller, ProxyProcess, World, consumer, producer
from tests.waiting import until

ACCOUNTS = """
accounts:
- accessKey: admin-key
  secretKey: admin-secret
  admin: true
- accessKey: user-key
  secretKey: user-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [Own=PUB|SUB]
  groupPerms: [own=SUB]
- accessKey: other-key
  secretKey: other-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
INNER = '{"accessKey":"admin-key","secretKey":"admin-secret"}'
OWN, OTHER = pb.Resource(name="own"), pb.Resource(name="other")


def signed(key, secret):
    date_time = "20261125T030000Z"
    made = hmac.digest(secret.encode(), date_time.encode(), hashlib.sha1).hex()
    authorization = (
        f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={made}"
    )
    return (("x-mq-date-time", date_time), ("authorization", authorization))


def with_accounts(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    return {
        "acl_enable": True,
        "acl_file": str(path),
        "inner_client_authentication_credentials": INNER,
    }


def content(path):
    return Path(path).read_bytes()


async def test_accounts_decide_what_a_client_may_do(tmp_path):
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path)) as world:
        await world.topic("Own")
        await world.topic("Secret")
        proxy = world.proxies[0]
        async with (
            Caller(proxy, client_id="u", metadata=signed("user-key", "user-secret")) as user,
            Caller(proxy, client_id="w", metadata=signed("user-key", "wrong-secret")) as wrong,
            Caller(proxy, client_id="n") as nobody,
            Caller(proxy, client_id="o", metadata=signed("other-key", "other-secret")) as other,
        ):
            for stranger in (wrong, nobody):
                assert (await stranger.send("Own")).status.code == pb.Code.UNAUTHORIZED
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stranger.telemetry(producer("Own"))
                assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await nobody.telemetry(None)  # and says nothing
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert (await user.send("Own")).status.code == pb.Code.OK
            assert (await user.send("Secret")).status.code == pb.Code.FORBIDDEN
            assert (await user.receive("Secret", "own")).code == pb.Code.FORBIDDEN
            assert (await user.receive("Own", "other")).code == pb.Code.FORBIDDEN
            (one,) = await user.received("Own", "own")
            secret = await other.send("Secret", b"secret")
            assert secret.status.code == pb.Code.OK
            (theirs,) = await other.received("Secret", "other")
            position = theirs.system_properties.receipt_handle.split(" ")[8]
            made_up = [*one.system_properties.receipt_handle.split(" ")[:8], position]
            stolen = await user.call(
                "ForwardMessageToDeadLetterQueue", group=OWN, topic=one.topic,
                receipt_handle=" ".join(made_up), message_id="x",
            )  # fmt: skip
            assert stolen.status.code == pb.Code.INVALID_RECEIPT_HANDLE
            assert await user.ack(one, "own") == pb.Code.OK
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await user.telemetry(consumer("own", "Secret"))
            assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
            async with Caller(proxy, client_id="o", metadata=user.metadata[2:]) as thief:
                answer = await thief.call("NotifyClientTermination", group=OWN)
                assert answer.status.code == pb.Code.FORBIDDEN
        assert proxy.figures().unauthorized >= 7


async def test_client_continues_with_a_new_key_after_its_account_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "CHECK_S", 0.05)
    heartbeat = {"group": OWN, "client_type": pb.ClientType.PUSH_CONSUMER}
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path)) as world:
        await world.topic("Own")
        (proxy,) = world.proxies
        async with (
            Caller(proxy, client_id="c", metadata=signed("user-key", "user-secret")) as client,
            Caller(proxy, client_id="c", metadata=signed("other-key", "other-secret")) as other,
        ):
            stream, _ = await client.telemetry(consumer("own", "Own"))
            await asyncio.sleep(0.2)
            answer = await other.call("Heartbeat", **heartbeat)
            assert answer.status.code == pb.Code.FORBIDDEN, "it lives, and so does its account"
            await client.ok("Heartbeat", **heartbeat)
            path = tmp_path / "plain_acl.yml"
            path.write_text(ACCOUNTS.replace("user-key", "fresh-key"))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                while await stream.read() is not grpc.aio.EOF:
                    pass
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            fresh = signed("fresh-key", "user-secret")
            async with Caller(proxy, client_id="c", metadata=fresh) as renewed:
                await renewed.ok("Heartbeat", **heartbeat)
                await renewed.telemetry(consumer("own", "Own"))
                await asyncio.sleep(0.2)
                await renewed.ok("Heartbeat", **heartbeat)
                answer = await other.call("Heartbeat", **heartbeat)
                assert answer.status.code == pb.Code.FORBIDDEN


async def test_dead_letter_needs_the_right_to_read_its_topic(tmp_path):
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path)) as world:
        await world.topic("Secret")
        proxy = world.proxies[0]
        async with (
            Caller(proxy, client_id="u", metadata=signed("user-key", "user-secret")) as user,
            Caller(proxy, client_id="o", metadata=signed("other-key", "other-secret")) as other,
        ):
            assert (await other.send("Secret", b"secret")).status.code == pb.Code.OK
            (theirs,) = await other.received("Secret", "other")
            *parts, location = theirs.system_properties.receipt_handle.split(" ")
            answers = [
                await user.call(
                    "ForwardMessageToDeadLetterQueue", group=OWN, topic=theirs.topic,
                    receipt_handle=" ".join([*parts, position]), message_id="x",
                )
                for position in (location, str(int(location) + 1))
            ]  # fmt: skip
        right, wrong = (answer.status for answer in answers)
        assert right.code == pb.Code.FORBIDDEN
        assert wrong == right  # nor does it tell where messages are
        broker = await world.group.leading()
        assert broker.state.topics.get("%DLQ%own") is None


async def test_tls_with_a_renewed_certificate(tmp_path, caplog, monkeypatch):
    """gRPC's port shows the certificate that the log says is in use."""
    caplog.set_level("INFO", "raftmq.remoting.tls")
    monkeypatch.setattr(process_tls, "RELOAD_S", 0.1)
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", days=3)
    settings: dict[str, Any] = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": cert,
        "tls_server_key_path": key,
    }
    async with World(tmp_path / "b", proxy=settings) as world:
        await world.topic("T")
        (proxy,) = world.proxies
        trusted = grpc.ssl_channel_credentials(content(authority.path))

        async def shown():
            """Return the certificate that gRPC's port shows, with which a call succeeds."""
            channel = grpc.aio.secure_channel(f"localhost:{proxy.port}", trusted)
            async with Caller(proxy, channel=channel) as caller:
                assert (await caller.send("T")).status.code == pb.Code.OK
            return await asyncio.to_thread(ssl.get_server_certificate, ("localhost", proxy.port))

        first = await shown()
        assert first.encode() in content(cert)
        authority.issue("server", expired=True)
        await until(lambda: "the certificate has expired; what was there is kept" in caplog.text)
        assert await shown() == first
        authority.issue("server")
        await until(lambda: "tls_renewed" in caplog.text)
        second = await shown()
        assert second.encode() in content(cert)
        refusals = [one for one in caplog.messages if "has expired" in one or "refused" in one]
        assert len(refusals) == 1, refusals
        async with Caller(proxy) as plain:
            with pytest.raises(grpc.aio.AioRpcError):
                await plain.call("Heartbeat", timeout_s=1)


async def test_proxy_connections_to_brokers_reload_their_tls_files_once(tmp_path, monkeypatch):
    """They use what the log and the figures speak of."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("proxy")
    settings: dict[str, Any] = {
        "tls_enable": True,
        "tls_client_trust_cert_path": authority.path,
        "tls_client_cert_path": cert,
        "tls_client_key_path": key,
    }
    start, given = ClientInstance.start, []

    async def started(instance, *arguments, **options):
        given.append(options["tls"])
        await start(instance, *arguments, **options)

    monkeypatch.setattr(ClientInstance, "start", started)
    shared = instances_of(monkeypatch, ProcessTls)
    async with ProxyServer(ProxyConfig(**PROXY, **settings), WAITS):
        assert given == [shared[0].client] != [None]
        assert "tls renewal" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_call_message_and_client_limits_are_enforced(tmp_path):
    settings: dict[str, Any] = {"message_size_max": 1024, "call_size_max": 4096, "clients_max": 1}
    async with World(tmp_path, proxy=settings) as world:
        await world.topic("T")
        async with Caller(world.proxies[0]) as caller:
            answer = await caller.send("T", b"x" * 1025)
            assert answer.status.code == pb.Code.MESSAGE_BODY_TOO_LARGE
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await caller.send("T", b"x" * 5000)
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await caller.telemetry(producer("T"))
        async with Caller(world.proxies[0], client_id="c2") as second:
            kind = pb.ClientType.PRODUCER
            answer = await second.call("Heartbeat", client_type=kind)
            assert answer.status.code == pb.Code.TOO_MANY_REQUESTS
            assert (await second.send("T")).status.code == pb.Code.OK  # it is served all the same


async def test_health_and_metrics_are_served(tmp_path):
    async with World(tmp_path) as world:
        await world.topic("T")
        proxy = await world.add_proxy(http_enable=True, http_port=0)
        async with Caller(proxy) as caller, aiohttp.ClientSession() as session:
            await caller.send("T")
            await caller.received("T")
            async with session.get(f"{present(proxy.http).url}health/ready") as answer:
                assert answer.status == 200
            async with session.get(f"{present(proxy.http).url}metrics") as answer:
                scrape = Scrape(await answer.text())
            calls = "rocketmq_proxy_calls_total"
            assert scrape.sum(calls, call="SendMessage", code="OK") == 1
            assert scrape.sum("rocketmq_proxy_messages_received_total") == 1
            assert scrape.sum("rocketmq_proxy_send_seconds_count") == 1
            await world.names.stop()
            async with session.get(f"{present(proxy.http).url}health/ready") as answer:
                assert answer.status == 503


async def test_mqproxy_serves_until_sigterm(tmp_path):
    async with World(tmp_path) as world:
        await world.topic("T")
        async with ProxyProcess(world.namesrv) as process, Caller(process) as caller:
            assert (await caller.send("T")).status.code == pb.Code.OK
            assert await process.end(signal.SIGTERM) == 0


async def test_brokers_are_reached_at_mapped_addresses(tmp_path):
    """They tell clients an address at which nobody listens, as containers do behind a port."""
    with bound() as held:
        nowhere = held.getsockname()[1]
    async with World(tmp_path, advertisedPort=nowhere) as world:
        broker = await world.group.leading()
        behind = f"127.0.0.1:{broker.port}"
        mapped = f"127.0.0.1:{nowhere}={behind}; 127.0.0.1:1=elsewhere:10911"
        proxy = await world.add_proxy(broker_address_map=mapped)
        await world.group.client.close()
        world.group.client = RemotingClient(reached_at={broker.address: behind})
        await world.topic("T")
        async with Caller(proxy) as caller:
            assert (await caller.send("T")).status.code == pb.Code.OK
            (one,) = await caller.received("T")
            assert await caller.ack(one) == pb.Code.OK


async def test_mqproxy_health_reports_why_the_proxy_cannot_serve(tmp_path, monkeypatch):
    monkeypatch.delenv("RAFTMQ_TLS_CONFIG_FILE", raising=False)

    async def asked(port):
        monkeypatch.setenv("RAFTMQ_HTTP_PORT", str(port))
        return await asyncio.to_thread(CliRunner().invoke, health, [])

    async with World(tmp_path, proxy={"http_enable": True, "http_port": 0}) as world:
        port = world.proxies[0].http.port
        well = await asked(port)
        assert (well.exit_code, well.output) == (0, f"127.0.0.1:{port}: healthy\n")
        await world.names.stop()
        ill = await asked(port)
        assert ill.exit_code == 1 and "not ready" in ill.output
    gone = await asked(port)
    assert gone.exit_code == 1 and "refused" in gone.output


@pytest.mark.parametrize(
    ("mode", "code", "part"), [("cluster", 0, "namesrvAddr"), ("local", 2, "cluster")]
)
def test_apaches_mode_option_accepts_cluster(mode, code, part):
    result = CliRunner().invoke(main, ["-pm", mode, "-n", "127.0.0.1:1", "config", "show"])
    assert result.exit_code == code and part in result.output


def test_mqproxy_health_reports_an_invalid_tls_file(tmp_path, monkeypatch):
    monkeypatch.setenv("RAFTMQ_TLS_CONFIG_FILE", str(tmp_path / "none"))
    result = CliRunner().invoke(health, ["--address", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.output.endswith("none: No such file or directory\n")


async def test_expiring_certificate_is_reported_while_the_proxy_serves(tmp_path, monkeypatch):
    monkeypatch.delenv("RAFTMQ_TLS_CONFIG_FILE", raising=False)
    cert, key = Authority(tmp_path).issue("server", days=13)
    settings: dict[str, Any] = {
        "http_enable": True,
        "http_port": 0,
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": cert,
        "tls_server_key_path": key,
    }
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as names:
        config = ProxyConfig(**(PROXY | {"namesrv": names.address} | settings))
        async with ProxyServer(config) as proxy, aiohttp.ClientSession() as session:
            async with session.get(f"{present(proxy.http).url}health/ready") as answer:
                assert answer.status == 200
                reported = await answer.json()
            (warning,) = reported["warnings"]
            assert warning.startswith("TLS: server: the certificate expires at 2")
            address = f"127.0.0.1:{present(proxy.http).port}"
            result = await asyncio.to_thread(CliRunner().invoke, health, ["--address", address])
            text = f"{address}: healthy\n{address}: warning: {warning}\n"
            assert (result.exit_code, result.output) == (0, text)
            scrape = Scrape(present(proxy.metrics).render()[0].decode())
            ends = "rocketmq_proxy_tls_certificate_not_after_seconds"
            assert scrape.sum(ends, context="server") > time.time()
            assert scrape.sum("rocketmq_proxy_tls_arrivals_total", context="server") == 0


@pytest.mark.parametrize(
    "setting, words",
    [
        ("tlsServerMode=permissive", "needs tlsServerCertPath"),
        ("aclEnable=true", "innerClientAuthenticationCredentials"),
        ("innerClientAuthenticationCredentials={}", "accessKey"),
        ("grpcServerPort=x", "grpcServerPort"),
        ("brokerAddressMap=a:1", "advertised=reachable"),
        ("brokerAddressMap=a:1=b", "host:port"),
        ("brokerAddressMap=a:1=http://b:1", "host:port"),
        ("namesrvAddr=ns1:9876;ns2", "'ns2' is no host:port"),
        ("namesrvAddr=;", "names no name server"),
    ],
)
def test_wrong_configuration_is_reported(setting, words):
    with pytest.raises(ConfigError, match=words):
        load(None, [setting], {})


def test_proxy_with_accounts_listens_on_all_addresses():
    inner = f"innerClientAuthenticationCredentials={INNER}"
    assert load(None, ["aclEnable=true", inner], {}).config.bind == "0.0.0.0"
    assert load(None, [], {"RAFTMQ_GRPC_SERVER_PORT": "9000"}).config.port == 9000
    assert os.environ.get("RAFTMQ_GRPC_SERVER_PORT") is None
