"""A name server shows the cluster's token to brokers that are proven to be some. Whoever else has
registered as a broker learns nothing that it could use again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner

from raftmq.broker.broker import Broker
from raftmq.mqadmin.cli import main
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from tests.broker.cluster import Group
from tests.broker.http.process import TOKENS, tokens_file
from tests.certificates import Authority
from tests.namesrv.http.test_real_brokers import Api
from tests.namesrv.test_server import Caller
from tests.waiting import until

SHOWN = {role: f"Bearer {token}" for role, token in TOKENS.items()}
RETRY_TOPIC = "%25RETRY%25cg"  # as it stands in a path
REFUSAL = (
    b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm="raftmq",'
    b' RaftMQ-HMAC nonce="0123456789abcdef0123456789abcdef"\r\n'
    b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"
)


class Impostor:
    """Listens as if it were a broker, keeps every byte that arrives, and asks everybody for a
    token. With `tls` it keeps what it can read of that."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.arrived: list[bytes] = []  # of each connection
        self.address = ""
        self._tls = tls

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Impostor]:
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0, ssl=self._tls)
        async with server:
            self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.arrived)
        self.arrived.append(b"")
        while data := await reader.read(65536):
            self.arrived[number] += data
            writer.write(REFUSAL)
        writer.close()

    async def register(self, names: NameServer, **more: Any) -> None:
        """Register as the leader of a group, as anybody can who reaches the name server."""
        caller = Caller(f"127.0.0.1:{names.port}")
        scheme = "https://" if self._tls else ""
        fields: dict[str, Any] = {
            "broker_name": "broker-x",
            "http_address": f"{scheme}{self.address}",
        }
        answer = await caller.register(self.address, 0, **fields, **more)
        assert answer.code == 0, answer.remark


@asynccontextmanager
async def over(
    directory: Path, token: str, broker: dict[str, Any] | None = None, **names: Any
) -> AsyncIterator[tuple[Api, NameServer, Broker]]:
    """A name server with that token, and one broker that wants one; an operator asks."""
    tokens = str(tokens_file(directory / "tokens"))
    own, key = directory / "own", directory / "key"
    own.write_text(token)
    key.write_text("a key of this cluster alone")
    own.chmod(0o600)
    key.chmod(0o600)
    settings: dict[str, Any] = {"registration_key_file": str(key), "http_tokens_file": tokens}
    settings |= {"registrations_must_be_signed": False, "http_broker_hosts": "127.0.0.1"} | names
    config = NameServerConfig(
        bind="127.0.0.1", port=0, http_port=0, http_cluster_token_file=str(own), **settings
    )
    shown = {"Authorization": SHOWN["operator"]}
    async with NameServer(config) as server, aiohttp.ClientSession(headers=shown) as session:
        assert server.http is not None
        own_settings = {
            "namesrvAddr": f"127.0.0.1:{server.port}",
            "httpTokensFile": tokens,
            "registrationKeyFile": str(key),
        }
        async with Group(directory, 1, **(own_settings | (broker or {}))) as group:
            leading = await group.leading()
            await until(lambda: bool(server.http and server.http.cluster.leaders().get("group-a")))
            yield Api(f"http://127.0.0.1:{server.http.port}", session), server, leading


async def test_broker_with_a_signed_registration_gets_the_cluster_token(tmp_path: Path) -> None:
    async with over(tmp_path, TOKENS["viewer"]) as (call, _, broker):
        seen = await call.until("/cluster", lambda v: v["groups"][0]["leader"])
        assert seen["groups"][0]["brokers"][0]["node"]["name"] == "n0"
        # The role is the token's, not the caller's.
        status, value, _ = await call("POST", "/groups/group-a/transfer", {"target": "n9"})
        assert (status, value["code"]) == (502, "CLUSTER_TOKEN")
        assert "viewer is viewer, not operator" in value["detail"]
        path = f"/brokers/group-a/0/topics/{RETRY_TOPIC}/queues?limit=1"
        assert (await call("GET", path))[0] == 404  # of the topic: that it may ask
        await until(lambda: broker.events.hub.reader_count == 1)  # the stream shows it, too


async def test_wrong_cluster_token_is_reported(tmp_path: Path) -> None:
    async with over(tmp_path, "nobodys-0123456789abcdef") as (call, _, _broker):
        seen = (await call("GET", "/cluster"))[1]["groups"][0]["brokers"][0]
        assert (seen["node"], seen["error"]) == (None, "401 nobody has this token")
        status, value, _ = await call("POST", "/groups/group-a/transfer", {})
        assert (status, value["code"]) == (502, "CLUSTER_TOKEN")


async def test_unsigned_broker_is_reported_as_not_trusted_with_the_token(tmp_path: Path) -> None:
    unsigned = {"registrationKeyFile": ""}
    async with over(tmp_path, TOKENS["admin"], unsigned) as (call, _, _broker):
        seen = (await call("GET", "/cluster"))[1]["groups"][0]["brokers"][0]
        why = (
            "it is not shown the cluster's token: its registration is not signed:"
            " registrationKeyFile"
        )
        assert (seen["node"], seen["error"]) == (None, f"401 {why}")
        status, value, _ = await call("POST", "/groups/group-a/transfer", {})
        assert (status, value["code"]) == (502, "CLUSTER_TOKEN")
        assert why in value["detail"]


async def operate(call: Api) -> None:
    """Do what an operator does at the dashboard, with a broker that is an impostor."""
    await call.until("/cluster", lambda v: any(g["name"] == "broker-x" for g in v["groups"]))
    for method, path, body in (
        ("POST", "/groups/broker-x/transfer", {}),
        ("GET", "/brokers/broker-x/0/node", None),
        ("POST", "/brokers/broker-x/0/consumer-groups/cg/reset", {"topic": "T"}),
        ("POST", "/brokers/broker-x/0/messages", {"topic": "T", "body": "b"}),
        ("GET", "/brokers/broker-x/0/events", None),
    ):
        status, value, _ = await call.once(method, path, body)
        assert status in (502, 503), (path, status, value)


def assert_nothing_secret(impostor: Impostor) -> None:
    for secret in TOKENS.values():
        assert not any(secret.encode() in one for one in impostor.arrived)
    assert not any(b"authorization" in one.lower() for one in impostor.arrived)


async def test_impostor_gets_no_secret_that_opens_the_broker(tmp_path: Path) -> None:
    async with (
        over(tmp_path, TOKENS["admin"]) as (call, names, broker),
        Impostor().listening() as impostor,
    ):
        await impostor.register(names)
        await operate(call)
        await until(lambda: any(b"/events" in one for one in impostor.arrived))
        assert_nothing_secret(impostor)
        # It sends each request that it saw to the broker, byte for byte.
        assert len(impostor.arrived) >= 5
        for request in impostor.arrived:
            assert await status_of(broker.http.address, request) == 401, request
        node = f"http://{broker.http.address}/api/v1/node"
        async with aiohttp.request("GET", node, headers={"Authorization": SHOWN["admin"]}) as one:
            assert one.status == 200  # people show theirs as ever


async def status_of(address: str, request: bytes) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_impostor_over_tls_gets_no_request(tmp_path: Path) -> None:
    """Nobody signs registrations here: the certificate alone says who is a broker."""
    ours, strangers = Authority(tmp_path, "ours"), Authority(tmp_path, "strangers")
    cert, key = ours.issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*strangers.issue("impostor"))
    https = {
        "httpTlsMode": "enforcing", "httpTlsCertPath": cert, "httpTlsKeyPath": key,
        "registrationKeyFile": "",
    }  # fmt: skip
    trust = {"tls_client_trust_cert_path": ours.path, "registration_key_file": ""}
    async with (
        over(tmp_path, TOKENS["admin"], https, **trust) as (call, names, broker),
        Impostor(context).listening() as impostor,
    ):
        assert broker.http.address.startswith("https://")
        await impostor.register(names)
        seen = await call.until("/cluster", lambda v: len(v["groups"]) == 2)
        errors = {g["name"]: g["brokers"][0]["error"] for g in seen["groups"]}
        assert errors["group-a"] is None
        assert "certificate" in errors["broker-x"]
        await operate(call)
        assert impostor.arrived == []
        # Nor does an administrator's tool, which trusts the same CA, tell it anything.
        trust_file = tmp_path / "tls.properties"
        trust_file.write_text(f"tls.client.trustCertPath={ours.path}\n")
        env = {
            "RAFTMQ_TLS_CONFIG_FILE": str(trust_file),
            "RAFTMQ_ACCESS_KEY": "admin",
            "RAFTMQ_SECRET_KEY": TOKENS["admin"],
        }
        arguments = ["brokerStatus", "-b", impostor.address, "-n", f"127.0.0.1:{names.port}"]
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=env)
        assert result.exit_code != 0
        assert "certificate" in result.output
        assert impostor.arrived == []
