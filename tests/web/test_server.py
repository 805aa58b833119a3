"""The server over real sockets: who is let in, what is too much, what is told when it fails."""

import asyncio
import contextlib
import io
import itertools
import logging
import os
import socket
import time
import zlib
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiohttp.client_exceptions import ClientConnectionResetError
from aiohttp.streams import StreamReader

from raftmq.web import app
from raftmq.web.app import (
    BODIES_BYTES_MAX,
    BODY_BYTES_MAX,
    STRANGER_BODY_BYTES_MAX,
    UNREAD_BYTES_MAX,
    Page,
    RequestLog,
    WebServer,
)
from raftmq.web.auth import Access, load_token
from raftmq.web.events import EventHub
from raftmq.web.operation import Caller, Operation, Reply, Role
from raftmq.web.problem import conflict
from raftmq.web.schema import Count, Input
from raftmq.web.sessions import COOKIE
from raftmq.web.settings import WebConfigError, WebSettings
from tests.broker.http.client import Client
from tests.present import present
from tests.waiting import until

TOKENS = {role: f"{role}-0123456789abcdef" for role in ("viewer", "operator", "admin")}
PATIENCE_S = 60


class Body(Input, frozen=True, kw_only=True):
    number: Count = 7


async def echo(call):
    return {"number": call.body.number, "caller": call.caller.name}


async def fine(call):
    return Reply({"fine": True}, version="v1")


async def broken(call):
    raise RuntimeError("secret words")


async def refused(call):
    raise conflict("no")


async def impossible(call):
    raise AssertionError("cannot be")


OPERATIONS = [
    Operation("GET", "/fine", "fine", "f", fine),
    Operation("GET", "/open", "open", "o", fine, role=None),
    Operation("POST", "/echo", "echo", "e", echo, role=Role.OPERATOR, body=Body),
    Operation("DELETE", "/echo", "drop", "d", fine, role=Role.ADMIN),
    Operation("GET", "/broken", "broken", "b", broken),
    Operation("GET", "/refused", "refused", "r", refused),
    Operation("GET", "/impossible", "impossible", "i", impossible),
]


def written(path, value, mode=0o600):
    path.write_bytes(value if isinstance(value, bytes) else orjson.dumps(value))
    path.chmod(mode)
    return str(path)


def tokens_file(tmp_path, mode=0o600):
    tokens = [{"token": token, "role": role, "name": role} for role, token in TOKENS.items()]
    return written(tmp_path / "tokens", {"tokens": tokens}, mode)


@asynccontextmanager
async def serving(tokens="", hub=None, more=(), **options):
    settings = WebSettings(tokens_file=tokens)
    operations = [*OPERATIONS, *more, *([hub.operation()] if hub else [])]
    closing = hub.close if hub else (lambda: None)
    server = WebServer(
        settings,
        Access.of(settings),
        operations,
        title="T",
        version="1",
        closing=closing,
        **options,
    )
    await server.start()
    try:
        async with Client(f"127.0.0.1:{server.port}") as client:
            client.server = server
            yield client
    finally:
        await server.stop()


async def test_health_is_served_on_loopback_without_token_or_certificate(tmp_path):
    """Containers ask there, without a token or a certificate."""
    operations = [
        Operation("GET", "/health/live", "live", "l", fine, role=None),
        Operation("GET", "/health/ready", "ready", "r", refused, role=None),
        *OPERATIONS,
    ]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = WebSettings(tokens_file=tokens_file(tmp_path), health_port=port)
    server = WebServer(settings, Access.of(settings), operations, title="T", version="1")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{port}") as client:
            assert (await client.ask("GET", "/health/live")).status == 200
            assert (await client.ask("GET", "/health/ready")).status == 409
            bearer = f"Bearer {TOKENS['admin']}"
            for path in ("/fine", "/open", "/metrics"):
                assert (await client.ask("GET", path, Authorization=bearer)).status == 404
    finally:
        await server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_changed_tokens_are_in_force_without_a_restart(tmp_path, monkeypatch, caplog):
    """Who was taken out is out, and every session with him."""
    monkeypatch.setattr(app, "TOKENS_POLL_S", 0.01)
    caplog.set_level(logging.INFO)
    path, new = tokens_file(tmp_path), "Bearer another-token-of-an-admin"
    old = f"Bearer {TOKENS['admin']}"

    def change(value):
        os.replace(written(tmp_path / "new", value), path)

    settings = WebSettings(tokens_file=path)
    access = Access.of(settings, with_sessions=True)
    server = WebServer(settings, access, OPERATIONS, title="T", version="1")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{server.port}") as client, asyncio.timeout(60):
            session = present(access.sessions).made(Caller("admin", Role.ADMIN), int(time.time()))
            cookie = f"{COOKIE}={session}"
            assert (await client.ask("GET", "/fine", Cookie=cookie)).status == 200
            change(b"{ half a file")
            await until(lambda: "tokens_file_refused" in caplog.text)
            assert (await client.ask("GET", "/fine", Authorization=old)).status == 200
            assert (await client.ask("GET", "/fine", Cookie=cookie)).status == 200
            token = {"token": new.split()[1], "role": "admin", "name": "new"}
            change({"tokens": [token]})
            await until(lambda: "tokens_file_read" in caplog.text)
            answer = await client.ask("GET", "/fine", Authorization=old)
            assert b"nobody has this token" in answer.body
            assert (await client.ask("GET", "/fine", Authorization=new)).status == 200
            assert b"log in again" in (await client.ask("GET", "/fine", Cookie=cookie)).body
            assert caplog.text.count("tokens_file_refused") == 1
    finally:
        await server.stop()


async def test_tokens_and_roles(tmp_path):
    async with serving(tokens_file(tmp_path)) as client:
        for method, path, allowed in (
            ("GET", "/fine", ("viewer", "operator", "admin")),
            ("POST", "/echo", ("operator", "admin")),
            ("DELETE", "/echo", ("admin",)),
        ):
            for role, token in TOKENS.items():
                answer = await client.ask(method, path, Authorization=f"Bearer {token}")
                assert answer.status == (200 if role in allowed else 403), (method, role)
        for wrong in ("Bearer nobody-0123456789", "Basic abc", "Bearer", "", "Bearer \xff"):
            answer = await client.ask("GET", "/fine", Authorization=wrong)
            assert (answer.status, answer.code) == (401, "UNAUTHORIZED"), wrong
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        nobody = await client.get("/fine")
        assert nobody.status == 401
        assert (await client.get("/open")).status == 200
        reported = await client.post("/echo", Authorization=f"bearer {TOKENS['admin']}")
        assert reported.json == {"number": 7, "caller": "admin"}


async def test_only_loopback_origins_are_served_without_tokens():
    async with serving() as client:
        own = f"127.0.0.1:{client.server.port}"
        for host, origin, status in (
            (own, None, 200),
            ("localhost:1", "http://localhost:1", 200),
            ("[::1]:9880", "http://[::1]:9880", 200),
            ("evil.example", None, 403),
            ("127.0.0.1.evil.example", None, 403),
            ("10.0.0.1:80", None, 403),
            ("[::1", None, 403),
            (own, "http://evil.example", 403),
            (own, "null", 403),
            (own, "http://127.0.0.1:1", 403),
            (own, "http://[", 403),
            (own, "http://[x]", 403),
            (own, f"http://{own}", 200),
        ):
            headers = {"Host": host} | ({"Origin": origin} if origin else {})
            answer = await client.ask("POST", "/echo", **headers)
            assert answer.status == status, (host, origin, answer.body)
        read = await client.ask("GET", "/fine", Origin="http://evil.example")
        assert read.status == 200 and "Access-Control-Allow-Origin" not in read.headers


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_public_address_needs_tokens(address, tmp_path):
    with pytest.raises(WebConfigError, match="httpTokensFile"):
        Access.of(WebSettings(bind_address=address))
    Access.of(WebSettings(bind_address=address, tokens_file=tokens_file(tmp_path)))
    WebSettings(bind_address=address, enabled=False).check()


def test_wrong_token_files_are_rejected(tmp_path):
    one = {"token": "0123456789abcdef", "role": "viewer", "name": "a"}
    for value, text in (
        (b"{", "tokens"),
        ({"tokens": []}, "length"),
        ({"tokens": [one | {"role": "root"}]}, "role"),
        ({"tokens": [one | {"token": "short"}]}, "length"),
        ({"tokens": [one | {"more": 1}]}, "unknown"),
        ({"tokens": [one, one]}, "twice"),
        ({"tokens": [one | {"token": f"{n:016}"} for n in range(257)]}, "length"),
        (b" " * 300_000, "larger"),
    ):
        path = written(tmp_path / "tokens", value)
        with pytest.raises(WebConfigError, match=text):
            Access.of(WebSettings(tokens_file=path))
    with pytest.raises(WebConfigError, match="No such file"):
        Access.of(WebSettings(tokens_file=str(tmp_path / "none")))
    for mode in (0o604, 0o602, 0o606):
        with pytest.raises(WebConfigError, match="open to everybody"):
            Access.of(WebSettings(tokens_file=tokens_file(tmp_path, mode)))
    Access.of(WebSettings(tokens_file=tokens_file(tmp_path, 0o640)))


def test_token_file_with_a_single_token(tmp_path):
    path = tmp_path / "token"
    written(path, b"0123456789abcdef\n")
    assert load_token(path, "httpClusterTokenFile") == "0123456789abcdef"
    for wrong in (b"", b"short", b"two words of one token", b"\xff" * 20):
        written(path, wrong)
        with pytest.raises(WebConfigError, match="httpClusterTokenFile"):
            load_token(path, "httpClusterTokenFile")


async def test_too_large_body_is_rejected_before_it_is_read():
    async with serving() as client:
        json = {"Content-Type": "application/json"}
        large = io.BytesIO(b" " * (BODY_BYTES_MAX + 1))
        answer = await client.ask("POST", "/echo", data=large, **json)
        assert (answer.status, answer.code) == (413, "TOO_LARGE")

        async def chunks():
            for _ in range(BODY_BYTES_MAX // 65536 + 2):
                yield b" " * 65536

        answer = await client.ask("POST", "/echo", data=chunks(), **json)
        assert (answer.status, answer.code) == (413, "TOO_LARGE")
        edge = io.BytesIO(b"{}" + b" " * (BODY_BYTES_MAX - 2))
        assert (await client.ask("POST", "/echo", data=edge, **json)).status == 200
        assert (await client.ask("POST", "/echo", data=b"{}")).status == 415


@pytest.fixture
def fed(monkeypatch):
    """Counts the bytes that reach the readers of bodies, unpacked or not."""
    counted, feed = [], StreamReader.feed_data

    def counting(self, data, *more):
        counted.append(len(data))
        return feed(self, data, *more)

    monkeypatch.setattr(StreamReader, "feed_data", counting)
    return counted


async def raw_post(client, *parts, **headers):
    """Send a POST without a token, part by part; return all that is answered until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port)
    lines = ["POST /echo HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):  # it is closed while this side still sends
            for part in parts:
                writer.write(part)
                await writer.drain()
        try:
            return await reader.read()
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_body_is_rejected_without_inflating(encoding, tmp_path, fed):
    """64 MiB arrive as 64 KiB. Unpacking them, even to throw them away, is work in the loop."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    body = b"".join([packer.compress(bytes(1 << 20)) for _ in range(64)] + [packer.flush()])
    async with serving(tokens_file(tmp_path)) as client:
        reported = await raw_post(client, body, Content_Encoding=encoding, Content_Length=len(body))
    assert reported.startswith(b"HTTP/1.1 415 ") and b"without Content-Encoding" in reported
    assert b"\r\nAccept-Encoding: identity\r\n" in reported
    assert sum(fed) <= len(body)


async def test_rejected_body_is_read_up_to_a_limit(tmp_path, fed):
    async with serving(tokens_file(tmp_path)) as client:
        part = bytes(1 << 16)
        many = itertools.repeat(part, 1 << 30 >> 16)
        with contextlib.suppress(ConnectionError):
            await raw_post(client, *many, Content_Length=1 << 30)
        assert sum(fed) <= UNREAD_BYTES_MAX + (8 << 20)  # and what one arrival holds
        fed.clear()
        # All that is sent before the answer is read: what most clients do.
        reported = await raw_post(client, *[part] * 16, Content_Length=len(part) * 16)
        assert reported.startswith(b"HTTP/1.1 401 ") and b"\r\nConnection: close\r\n" in reported
        large = await client.ask("POST", "/echo", data=io.BytesIO(bytes(1 << 20)))
        assert large.status == 401
        assert (await client.ask("POST", "/echo", data=b"{}")).status == 401


async def test_errors_are_problems_without_secrets(caplog):
    async with serving() as client:
        answer = await client.get("/broken")
        assert (answer.status, answer.code) == (500, "INTERNAL")
        assert b"secret" not in answer.body and "secret words" in caplog.text
        assert (await client.get("/refused")).code == "CONFLICT"
        assert (await client.get("/nothing")).code == "NOT_FOUND"
        other = await client.ask("PUT", "/fine")
        assert (other.code, other.headers["Allow"]) == ("METHOD_NOT_ALLOWED", "GET")
        assert (await client.get("/fine", a="1")).code == "INVALID"
        assert (await client.get("/impossible")).status == 500  # an assertion, too
        for path in ("/broken", "/nothing"):
            answer = await client.get(path)
            assert answer.headers["Content-Type"].startswith("application/problem+json")


async def test_unchanged_resource_is_answered_with_304():
    async with serving() as client:
        first = await client.get("/fine")
        assert first.headers["ETag"] == '"v1"'
        again = await client.ask("GET", "/fine", If_None_Match='"v1"')
        assert (again.status, again.body) == (304, b"")
        assert (await client.ask("GET", "/fine", If_None_Match='"v2"')).status == 200


async def test_pages_have_a_content_security_policy():
    async with serving(pages=[Page("/", "text/html", b"<p>")]) as client:
        answer = await client.get("/")
        assert answer.body == b"<p>"
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        reference = await client.get("/docs")
        assert reference.status == 200
        assert "script-src 'self';" in reference.headers["Content-Security-Policy"]
        renderer = await client.get("/docs/rapidoc.js")  # without a token, and unpacked here
        assert renderer.headers["Content-Encoding"] == "gzip" and b"rapi-doc" in renderer.body


class Raw:
    """A connection that asks what it is told, and holds its place until the server closes it."""

    def __init__(self, client):
        self.port = client.server.port

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def ask(self, path, token=""):
        """Return the status of the answer; None: the connection is closed."""
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n".encode())
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await self.reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await self.reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        return int(head.split()[1])

    async def is_closed(self):
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                assert await self.reader.read() == b""
        return True


@pytest.fixture
async def held():
    """Connections to close at the end."""
    result: list[Any] = []
    yield result
    for one in result:
        one.writer.transport.abort()


async def test_connections_without_an_account_do_not_block_others(tmp_path, held, caplog):
    """They fill the port with connections that have asked something anybody may; health is told,
    and whoever has an account keeps its connection."""
    async with serving(tokens_file(tmp_path), connections_max=4) as client:
        known = await Raw(client).open()
        held.append(known)
        assert await known.ask("/fine", TOKENS["viewer"]) == 200
        for _ in range(12):
            stranger = await Raw(client).open()
            held.append(stranger)
            assert await stranger.ask("/open") == 200
            assert await stranger.ask("/fine", "nobodys-0123456789") == 401
        assert await held[1].is_closed()  # the longest held
        assert await held[-1].ask("/open") == 200
        assert await known.ask("/fine", TOKENS["viewer"]) == 200
        assert client.server.refused_connections == 9
        reported = [r.getMessage() for r in caplog.records if "connection_" in r.getMessage()]
        start = "connection_abandoned total="
        assert reported == [f"{start}{total} reason=too_many" for total in (1, 2, 4, 8)]


async def test_account_with_every_connection_does_not_block_others(tmp_path, held):
    """Its connections are idle; health, a new caller and another account are served."""
    async with serving(tokens_file(tmp_path), connections_max=8) as client:
        other = await Raw(client).open()
        held.append(other)
        assert await other.ask("/fine", TOKENS["operator"]) == 200
        for _ in range(20):
            held.append(await Raw(client).open())
            assert await held[-1].ask("/fine", TOKENS["viewer"]) == 200
        for path, token in (("/open", ""), ("/fine", TOKENS["admin"])):
            held.append(await Raw(client).open())
            assert await held[-1].ask(path, token) == 200
        assert await other.ask("/fine", TOKENS["operator"]) == 200


async def test_connection_above_the_limit_gets_503(held):
    """Only where every other one has a request in progress."""
    hub = EventHub()
    async with serving(hub=hub, connections_max=1) as client:
        async with client.session.get(f"{client.base}/api/v1/events"):
            held.append(await Raw(client).open())
            assert b"503" in await held[0].reader.readline()
            assert client.server.refused_connections == 1


HEALTH = Operation("GET", "/health/live", "live", "l", fine, role=None)


async def test_event_streams_of_one_account_leave_room_for_others(tmp_path, held):
    """It opens as many as it likes, again and again. What it gets too many are refused with the
    reason; every other caller is served meanwhile, and gets a stream."""
    hub = EventHub()
    async with serving(tokens_file(tmp_path), hub, connections_max=32, more=[HEALTH]) as client:
        host, port = "127.0.0.1", client.server.port
        ask = "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"
        statuses = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write((ask % TOKENS["viewer"]).encode())
            held.append(SimpleNamespace(writer=writer))
            async with asyncio.timeout(PATIENCE_S):
                statuses.append((await reader.readuntil(b"\r\n"))[9:12])
                if statuses[-1] == b"503":
                    text = await reader.readuntil(b"viewer")
                    assert b"8 event streams are open" in text
        assert statuses.count(b"200") == hub.reader_count < 8
        assert statuses.count(b"200") + statuses.count(b"503") == 100
        for path, token in (("/health/live", ""), ("/fine", "viewer"), ("/fine", "admin")):
            headers = {"Authorization": f"Bearer {TOKENS[token]}"} if token else {}
            assert (await client.ask("GET", path, **headers)).status == 200
        headers = {"Authorization": f"Bearer {TOKENS['operator']}"}
        async with client.session.get(f"{client.base}/api/v1/events", headers=headers) as stream:
            assert stream.status == 200


async def test_requests_of_one_account_leave_room_for_others(tmp_path):
    """They do not end; further ones are refused at once."""
    waits = asyncio.Event()

    async def slow(call):
        await waits.wait()
        return {}

    more = [HEALTH, Operation("GET", "/slow", "slow", "s", slow)]
    async with serving(tokens_file(tmp_path), connections_max=32, more=more) as client:

        def ask(path, who):
            return client.ask("GET", path, Authorization=f"Bearer {TOKENS[who]}")

        requested = [asyncio.create_task(ask("/slow", "viewer")) for _ in range(9)]
        async with asyncio.timeout(PATIENCE_S):
            done, _ = await asyncio.wait(requested, return_when=asyncio.FIRST_COMPLETED)
            [refused] = [task.result() for task in done]
            assert (refused.status, refused.code) == (503, "BUSY")
            assert b"8 of 16 requests are in progress, 8 of them of viewer" in refused.body
            assert (await client.get("/health/live")).status == 200
            assert (await ask("/fine", "admin")).status == 200
            waits.set()
            statuses = [answer.status for answer in await asyncio.gather(*requested)]
            assert sorted(statuses) == [200] * 8 + [503]
            assert (await ask("/fine", "viewer")).status == 200
        assert client.server.admission.requests.used == 0


async def test_longest_silent_connection_is_closed_without_tokens(held):
    hub = EventHub()
    async with serving(hub=hub, connections_max=3) as client:
        async with client.session.get(f"{client.base}/api/v1/events"):  # silent, but under way
            for _ in range(2):
                held.append(await Raw(client).open())
                assert await held[-1].ask("/fine") == 200
            assert await held[0].ask("/fine") == 200
            held.append(await Raw(client).open())
            assert await held[2].ask("/fine") == 200
            assert await held[1].is_closed()
            assert await held[0].ask("/fine") == 200
            assert hub.reader_count == 1


async def test_connection_without_a_request_is_closed(held):
    async with serving(stranger_s=1.0) as client:
        first = await client.get("/fine")  # who has asked stays, beyond the limit, too
        held.append(await Raw(client).open())
        held[0].writer.write(b"GET /fine HTTP/1.1\r\nHost: localh")
        assert await held[0].is_closed()
        assert first.status == (await client.get("/fine")).status == 200
        assert len(client.session.connector._conns) == 1


async def test_connection_without_an_account_is_kept_for_seconds(tmp_path, held):
    async with serving(tokens_file(tmp_path), stranger_s=0.5) as client:
        for token in (TOKENS["viewer"], ""):
            held.append(await Raw(client).open())
            assert await held[-1].ask("/open" if not token else "/fine", token) == 200
        assert await held[1].is_closed()
        assert await held[0].ask("/open") == 200


# ---- events -----------------------------------------------------------------------------------


async def read_events(response, count):
    result: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(result) < count:
            text = (await response.content.readuntil(b"\n\n")).decode()
            lines = dict(line.partition(": ")[::2] for line in text.splitlines())
            if "data" in lines:
                result.append((lines["id"], orjson.loads(lines["data"])))
    return result


async def test_event_stream_resumes_and_reports_gaps():
    hub = EventHub(lambda: 5_000, ring_size=3)
    async with serving(hub=hub) as client:
        url = f"{client.base}/api/v1/events"
        async with client.session.get(url) as response:
            hub.publish("roleChanged", node="n0", group="g", term=2, detail={"role": "leader"})
            [(first, event)] = await read_events(response, 1)
        assert event == {
            "kind": "roleChanged", "node": "n0", "group": "g", "term": 2, "at": 5_000,
            "detail": {"role": "leader"},
        }  # fmt: skip
        for number in range(2):
            hub.publish("fault", detail={"number": number})
        async with client.session.get(url, headers={"Last-Event-ID": first}) as response:
            events = await read_events(response, 2)
        assert [event["detail"]["number"] for _, event in events] == [0, 1]
        for number in range(2, 4):
            hub.publish("fault", detail={"number": number})
        for seen in (first, "1-1", "?", "5000-99"):
            async with client.session.get(url, params={"lastEventId": seen}) as response:
                events = await read_events(response, 4)
            assert [event["kind"] for _, event in events] == ["gap", "fault", "fault", "fault"]


async def test_event_reader_that_does_not_read_is_disconnected():
    hub = EventHub(behind_max=4)
    async with serving(hub=hub) as client:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect(("127.0.0.1", client.server.port))
            slow.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: hub.reader_count)
            async with asyncio.timeout(PATIENCE_S):
                while hub.cut_off == 0:
                    hub.publish("fault", detail={"text": "x" * 100_000})
                    await asyncio.sleep(0)
            assert hub.reader_count == 0


async def test_stop_ends_the_event_streams():
    hub = EventHub()
    async with serving(hub=hub) as client:
        async with client.session.get(f"{client.base}/api/v1/events") as response:
            async with asyncio.timeout(PATIENCE_S):
                await client.server.stop()
                assert b"retry" in await response.content.read()


async def test_quiet_event_streams_send_heartbeats():
    hub = EventHub(heartbeat_s=0.02)
    async with serving(hub=hub) as client:
        async with client.session.get(f"{client.base}/api/v1/events") as response:
            async with asyncio.timeout(PATIENCE_S):
                await response.content.readuntil(b":\n\n")


async def test_bodies_of_concurrent_requests_are_limited_in_total(tmp_path):
    """Half of what is held may be one account's. Eight begin and do not end; one more is refused,
    another account is served, and later each is."""
    async with serving(tokens_file(tmp_path)) as client:
        host, port = "127.0.0.1", client.server.port
        head = (
            f"POST /echo HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {TOKENS['operator']}\r\n"
            f"Content-Length: {BODY_BYTES_MAX}\r\n\r\n{{"
        ).encode()
        held = []
        for _ in range(BODIES_BYTES_MAX // BODY_BYTES_MAX // 2):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(head)
            held.append(writer)
        bodies = client.server.admission.bodies
        await until(lambda: bodies.used >= BODIES_BYTES_MAX // 2)

        async def post(who):
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKENS[who]}"}
            return await client.ask("POST", "/echo", data=b"{}", **headers)

        answer = await post("operator")
        assert (answer.status, answer.code) == (503, "BUSY")
        assert (await post("admin")).status == 200
        for writer in held:
            writer.transport.abort()
        await until(lambda: bodies.used == 0)
        assert (await post("operator")).status == 200


async def test_body_without_an_account_has_a_small_limit():
    more = [Operation("POST", "/open", "open2", "o", echo, role=None, body=Body)]
    async with serving(more=more) as client:
        json = {"Content-Type": "application/json"}
        for size, status in ((STRANGER_BODY_BYTES_MAX, 200), (STRANGER_BODY_BYTES_MAX + 1, 413)):
            data = io.BytesIO(b"{}".ljust(size))
            answer = await client.ask("POST", "/open", data=data, Content_Length=str(size), **json)
            assert answer.status == status


def test_client_gone_before_its_answer_is_logged_without_traceback(caplog):
    """It asked to be told to go on (Expect), and was gone when it was."""
    request_log = RequestLog(logging.getLogger("raftmq.web"))
    for error in (ClientConnectionResetError("closing"), ConnectionResetError("gone")):
        request_log.exception("Error from %s", "127.0.0.1", exc_info=error)
    assert [record.exc_info for record in caplog.records] == [None, None]
    assert all("request_broken peer=127.0.0.1" in record.getMessage() for record in caplog.records)
