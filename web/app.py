"""The HTTP server of a process: routes from operations, checks, answers, errors.

    server = WebServer(settings, access, operations, title="…", version="…")
    port = await server.start();  …;  await server.stop()

With httpHealthPort, a second server for health listens on loopback.

It runs on the current loop. Limits apply to a request's body (BODY_BYTES_MAX, BODY_LIMIT_S), all
bodies (BODIES_BYTES_MAX), connections (CONNECTIONS_MAX), the time of each operation, and each
account's share (web.admission). Health and metrics are always answered. A body with a
Content-Encoding is refused, because decompression could cost the loop seconds. At most
UNREAD_BYTES_MAX of an unread body are discarded. Every error becomes a problem; an unforeseen error
is logged and answered 500 without details.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from raftmq.ops.listening import Listening, listen_plain
from raftmq.ops.versions import Condition

from .admission import Admission
from .auth import Access, allow
from .openapi import DOCS_FILES, DOCS_POLICY, docs_file, document
from .operation import EVENT_STREAM, JSON, Call, Caller, Operation, Reply, Role
from .problem import (
    MEDIA_TYPE,
    ApiProblem,
    busy,
    malformed,
    outcome_unknown,
    packed,
    timed_out,
    too_large,
)
from .schema import from_json, from_texts, invalid_repeats, to_json
from .settings import LOOPBACK, WebSettings
from .versions import condition_of, etag

log = logging.getLogger("raftmq.web")

FROM_PEER = {"from_peer": True}  # a peer can cause any number of these; ops.logs limits them
BODY_BYTES_MAX = 1024 * 1024
STRANGER_BODY_BYTES_MAX = 16 * 1024  # for an operation without an account
BODIES_BYTES_MAX = 16 * BODY_BYTES_MAX  # for all requests in progress; beyond, the answer is 503
BODY_LIMIT_S = 10.0
UNREAD_BYTES_MAX = (
    2 * BODY_BYTES_MAX
)  # after the answer; most clients read only after they have sent
UNREAD_LIMIT_S = 2.0
CONNECTIONS_MAX = 512
STRANGER_S = 5.0  # an idle stranger (web.admission) is closed after one to two times this
KEEPALIVE_S = 75.0
TOKENS_POLL_S = 10.0  # between checks of the tokens file
STOP_LIMIT_S = 2.0  # for requests in progress
BACKLOG = 128
REASON_CHARS_MAX = 200  # of a refusal's reason in the log
PAGE_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
OPENAPI_PATH = "/api/v1/openapi.json"
HEALTH_PATHS = ("/health/live", "/health/ready")
METRICS_PATH = "/metrics"
UNLIMITED_PATHS = frozenset((*HEALTH_PATHS, METRICS_PATH))

RawHandler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
Render = Callable[[str], tuple[bytes, str]]
Translate = Callable[[Exception], ApiProblem | None]


@dataclass(frozen=True, slots=True)
class Page:
    """A file for browsers, served without a token. `policy` is its Content-Security-Policy."""

    path: str
    media: str
    content: bytes
    policy: str = PAGE_POLICY
    encoding: str | None = None  # Content-Encoding; every browser takes gzip


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A route outside the OpenAPI document, such as a proxy's. `pattern` is aiohttp's, and method
    "*" means all. `role(request)` is the required role, or None. `is_stream(request)` is True for
    an event stream."""

    method: str
    pattern: str
    handler: RawHandler
    role: Callable[[web.Request], Role | None]
    is_stream: Callable[[web.Request], bool] = lambda _: False


# A way to listen with TLS: (protocol factory, host, port, a bound socket or None).
Listen = Callable[
    [Callable[[], asyncio.BaseProtocol], str, int, socket.socket | None], Awaitable[Listening]
]


ADMISSION = web.AppKey("admission", Admission)


class WebServer:
    """The HTTP server. Call `start` once and `stop` once."""

    def __init__(
        self,
        settings: WebSettings,
        access: Access,
        operations: Sequence[Operation],
        *,
        title: str,
        version: str,
        pages: Sequence[Page] = (),
        raw: Sequence[RawRoute] = (),
        translate: Translate = lambda error: None,
        closing: Callable[[], None] = lambda: None,
        connections_max: int = CONNECTIONS_MAX,
        stranger_s: float = STRANGER_S,
        listen: Listen | None = None,
    ) -> None:
        """`translate` turns an error of the owner's code into a problem, or returns None for other
        errors. `closing` is called first in `stop` (event hubs end their streams). Without
        `listen`, the server has no TLS."""
        self.port = 0
        self.refused_connections = 0  # including those closed for new connections
        self._settings = settings
        self._access = access
        self._translate = translate
        self._closing = closing
        self._connections_max = connections_max
        self._stranger_s = stranger_s
        self.admission = Admission(
            connections_max, BODIES_BYTES_MAX, with_tokens=access.tokens_file is not None
        )
        self._sweeper: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None  # of the tokens file
        own = (
            Operation(
                "GET",
                OPENAPI_PATH,
                "getOpenApi",
                "This document.",
                self._openapi,
                role=None,
                answer=dict[str, Any],
            ),
        )
        self.operations = (*operations, *own)
        self._health: WebServer | None = None
        if settings.health_port:
            health = [one for one in operations if one.path in HEALTH_PATHS]
            health_settings = WebSettings(bind_address=LOOPBACK, port=settings.health_port)
            self._health = WebServer(
                health_settings,
                Access.of(health_settings),
                health,
                title=title,
                version=version,
                translate=translate,
                connections_max=connections_max,
            )
        self._about = (title, version)
        self._document = b""  # made on demand, as it is a twentieth of a broker's start
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._outermost])
        app[ADMISSION] = self.admission
        for operation in self.operations:
            app.router.add_route(operation.method, operation.path, self._route(operation))
        for page in (*pages, *_reference()):
            app.router.add_get(page.path, _page_handler(page), allow_head=False)
        for route in raw:
            app.router.add_route(route.method, route.pattern, self._raw(route))
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=RequestLog(log),
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=STOP_LIMIT_S,
            auto_decompress=False,
            lingering_time=0,  # it is limited by time only; see _send_over_unread
        )
        self._listen = listen or partial(listen_plain, backlog=BACKLOG)
        self._listener: Listening | None = None

    async def start(
        self, listen_socket: socket.socket | None = None, health_socket: socket.socket | None = None
    ) -> int:
        """Listen, on already bound sockets if they are given; return the port. Raises OSError."""
        await self._runner.setup()
        if self._access.tokens_file is not None:  # this may be long after the access was made
            await asyncio.to_thread(self._access.read_if_changed)
        loop = asyncio.get_running_loop()
        host, port = self._settings.bind_address.strip("[]"), self._settings.port
        self._listener = await self._listen(self._protocol, host, port, listen_socket)
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self._sweep()
        if self._access.tokens_file is not None:
            self._watcher = loop.create_task(self._watch_tokens())
        if self._health is not None:
            await self._health.start(health_socket)
        return self.port

    async def stop(self) -> None:
        """Finish requests in progress, for a limited time, and close. Also after a failed start."""
        if self._health is not None:
            await self._health.stop()
        self._closing()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
        await self._runner.cleanup()

    async def _watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(TOKENS_POLL_S)
            await asyncio.to_thread(self._access.read_if_changed)

    # ---- connections ------------------------------------------------------------------------

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._connections_max and not self._make_room():
            return _Refusal()
        connection = server()
        self.admission.opened(connection, asyncio.get_running_loop().time())
        return connection

    def _make_room(self) -> bool:
        """Return whether a further connection fits, perhaps in place of an idle connection."""
        live = self._live()
        if len(live) < self._connections_max:
            return True
        self.refused_connections += 1
        total = self.refused_connections
        is_logged = total & (total - 1) == 0  # 1, 2, 4, 8, ..., to avoid a flood
        given_up = self.admission.evict()
        if given_up is None:
            if is_logged:
                log.warning("connection_refused total=%d reason=too_many", total, extra=FROM_PEER)
            return False
        if is_logged:
            log.warning("connection_abandoned total=%d reason=too_many", total, extra=FROM_PEER)
        _abort(given_up)
        return True

    def _live(self) -> list[RequestHandler]:
        """Return the connections that are open and not closing."""
        server = self._runner.server
        assert server is not None
        return [
            one
            for one in server.connections
            if one.transport is not None and not one.transport.is_closing()
        ]

    def _sweep(self) -> None:
        """Close connections of idle strangers."""
        loop = asyncio.get_running_loop()
        for one in self.admission.idle_strangers(self._live(), loop.time(), self._stranger_s):
            _abort(one)
        self._sweeper = loop.call_later(self._stranger_s, self._sweep)

    # ---- requests ---------------------------------------------------------------------------

    @web.middleware
    async def _outermost(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer a request, and leave the connection ready for its next request, or closed."""
        clock = asyncio.get_running_loop().time
        self.admission.record_request(request, clock())
        try:
            response = await self._answered(request, handler)
            if not request.content.is_eof():
                await _send_over_unread(request, response)
            return response
        finally:
            self.admission.answered(request, clock())

    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check every request's Host, Origin and encoding, and turn errors into problems."""
        try:
            headers = request.headers
            if "Content-Encoding" in headers:
                raise packed()
            self._access.check_host(headers.get("Host", ""), headers.get("Origin"), request.method)
            return await handler(request)
        except ApiProblem as problem:
            return _problem_response(request, problem)
        except web.HTTPException as error:
            return _problem_response(request, _of_http(error))
        except asyncio.CancelledError:
            raise
        except RequestPayloadError as error:
            return _problem_response(request, malformed(f"the body cannot be read: {error}"))
        except Exception as error:
            gone = request.transport is None or request.transport.is_closing()
            if gone and isinstance(error, ConnectionError):
                return _problem_response(request, malformed("the client went away"))
            return _problem_response(request, self._unforeseen(request, error))

    def _unforeseen(self, request: web.Request, error: Exception) -> ApiProblem:
        problem = self._translate(error)
        if problem is not None:
            return problem
        where = (request.method, request.path)
        log.error("request_failed %s %s", *where, exc_info=error, extra=FROM_PEER)
        return ApiProblem(500, "INTERNAL", "the request failed; the log of this process says why")

    def _route(
        self, operation: Operation
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            caller = self._caller(request, operation.role)
            self._admit(request, operation.path, operation.media == EVENT_STREAM)
            call = await _checked(operation, request, caller)
            answer = await _in_time(operation, call)
            if operation.method != "GET":
                log.info("changed_by=%s %s %s", caller.name, request.method, request.path)
            return _response(operation, request, answer)

        return handle

    def _raw(self, route: RawRoute) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            caller = self._caller(request, route.role(request))
            self._admit(request, route.pattern, route.is_stream(request))
            return await route.handler(request, caller)

        return handle

    def _caller(self, request: web.Request, role: Role | None) -> Caller:
        if role is None:
            return Caller("anybody", Role.VIEWER)
        caller = self._access.caller_of(
            request.headers,
            request.cookies.get(self._access.session_cookie.name, ""),
            request.method,
        )
        self.admission.accepted(request, caller.name)
        allow(caller, role)
        return caller

    def _admit(self, request: web.Request, path: str, is_stream: bool) -> None:
        """Count a request within its limit. Raises ApiProblem."""
        if is_stream:
            self.admission.take(request, self.admission.streams, "event streams are open")
        elif path not in UNLIMITED_PATHS:
            self.admission.take(request, self.admission.requests, "requests are in progress")

    async def _openapi(self, _: Call) -> web.Response:
        if not self._document:
            made = await asyncio.to_thread(document, *self._about, self.operations)
            self._document = to_json(made)
        return web.Response(body=self._document, content_type=JSON)


class RequestLog(logging.LoggerAdapter[logging.Logger]):
    """The logger for aiohttp's messages about requests, such as malformed HTTP, aborted answers,
    and failures of aiohttp's own, all of which a client can cause."""

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        error = more.get("exc_info")
        if isinstance(error, HttpProcessingError | RequestPayloadError | ConnectionResetError):
            peer, reason = args[-1] if args else "", " ".join(str(error).split())[:REASON_CHARS_MAX]
            log.warning("request_broken peer=%s reason=%s", peer, reason, extra=FROM_PEER)
        else:
            self.logger.error(msg, *args, **{"exc_info": True, **more, "extra": FROM_PEER})


def _abort(connection: RequestHandler) -> None:
    if connection.transport is not None:
        connection.transport.abort()


class _Refusal(asyncio.Protocol):
    """A connection above the limit, which gets a 503 and is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast instead of an isinstance, because uvloop's transports are not of asyncio's classes.
        accepted = cast(asyncio.WriteTransport, transport)
        text = to_json(busy("too many connections").to_json(""))
        accepted.write(
            b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
            b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (MEDIA_TYPE.encode(), len(text), text)
        )
        accepted.close()


async def read_body(request: web.Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Read the body, within the limits. Raises ApiProblem."""
    size = BODY_BYTES_MAX if request.content_length is None else request.content_length
    if size > bytes_max:
        raise too_large(f"the body is larger than {bytes_max} bytes, or has no Content-Length")
    admission = request.app[ADMISSION]
    admission.take(request, admission.bodies, "bytes of bodies are held", size)
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large(f"the body is larger than {bytes_max} bytes") from error
    except TimeoutError as error:
        raise ApiProblem(408, "TIMEOUT", "the body did not arrive in time") from error


async def _send_over_unread(request: web.Request, response: web.StreamResponse) -> None:
    """Send the last answer of a connection with an unread body, and discard a limited amount of the
    body. Most clients read only after they have sent all, and closing earlier would reset the
    connection."""
    response.force_close()
    left_bytes = UNREAD_BYTES_MAX
    # Expected if the client has gone, takes too long, or aborts the body.
    with contextlib.suppress(ConnectionError, TimeoutError, RequestPayloadError):
        await response.prepare(request)
        await response.write_eof()
        async with asyncio.timeout(UNREAD_LIMIT_S):
            while left_bytes > 0 and not request.content.at_eof():
                left_bytes -= len(await request.content.readany())


async def _checked(operation: Operation, request: web.Request, caller: Caller) -> Call:
    """Check a request and return it as a Call. Raises ApiProblem."""
    parameters = from_texts(request.match_info, operation.parameters)
    repeated = sorted({key for key in request.query if len(request.query.getall(key)) > 1})
    if repeated:
        raise invalid_repeats(repeated)
    query = from_texts(request.query, operation.query)
    condition = Condition()
    if operation.conditional:
        headers = request.headers
        condition = condition_of(headers.get("If-Match"), headers.get("If-None-Match"))
    body = None
    if operation.body is not None:
        bytes_max = STRANGER_BODY_BYTES_MAX if operation.role is None else BODY_BYTES_MAX
        body = await _body(request, operation.body, bytes_max)
    return Call(request, caller, parameters, query, body, condition)


async def _body(request: web.Request, kind: Any, bytes_max: int) -> Any:
    """Parse the body; a missing body counts as an object without fields. Raises ApiProblem."""
    if not request.can_read_body:
        return from_json(b"{}", kind)
    if request.content_type != JSON:
        raise ApiProblem(415, "UNSUPPORTED_MEDIA_TYPE", f"send {JSON}")
    return from_json(await read_body(request, bytes_max), kind)


async def _in_time(operation: Operation, call: Call) -> Any:
    if operation.limit_ms is None:
        return await operation.handler(call)
    try:
        async with asyncio.timeout(operation.limit_ms / 1000):
            return await operation.handler(call)
    except TimeoutError as error:
        reason = f"no answer within {operation.limit_ms} ms"
        if operation.method == "GET":
            raise timed_out(reason) from error
        raise outcome_unknown(reason) from error


def _response(operation: Operation, request: web.Request, answer: Any) -> web.StreamResponse:
    if isinstance(answer, web.StreamResponse):
        return answer
    reply = answer if isinstance(answer, Reply) else Reply(answer, operation.status)
    headers = {"Cache-Control": "no-store", **reply.headers}
    if reply.version is not None:
        headers["ETag"] = etag(reply.version)
        known = request.headers.get("If-None-Match", "")
        if request.method == "GET" and headers["ETag"] in known:
            return web.Response(status=304, headers=headers)
    if reply.status == 204:
        return web.Response(status=204, headers=headers)
    return web.Response(
        body=to_json(reply.value), status=reply.status, content_type=JSON, headers=headers
    )


def _problem_response(request: web.Request, problem: ApiProblem) -> web.Response:
    body = to_json(problem.to_json(request.path))
    return web.Response(
        body=body,
        status=problem.status,
        content_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **problem.headers},
    )


def _of_http(error: web.HTTPException) -> ApiProblem:
    """Turn aiohttp's own refusals (no such route, no such method, …) into problems."""
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}.get(error.status)
    if code is None:
        if error.status < 500:
            return malformed(error.reason)
        return ApiProblem(500, "INTERNAL", error.reason)
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    reasons = {404: "there is nothing at this path", 405: "not with this method"}
    return ApiProblem(error.status, code, reasons.get(error.status, error.reason), headers=headers)


def _reference() -> list[Page]:
    return [
        Page(path, media, docs_file(name), DOCS_POLICY, encoding)
        for path, (name, media, encoding) in DOCS_FILES.items()
    ]


def _guards(policy: str = PAGE_POLICY) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _page_handler(page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        charset = "utf-8" if page.media.startswith("text/") else None
        headers = _guards(page.policy)
        if page.encoding is not None:
            headers["Content-Encoding"] = page.encoding
        return web.Response(
            body=page.content, content_type=page.media, charset=charset, headers=headers
        )

    return handle


def metrics_route(render: Render) -> RawRoute:
    """Make the route GET /metrics, for viewers; `render(accept)` returns text and content type."""

    async def handle(request: web.Request, _: Caller) -> web.StreamResponse:
        text, content_type = render(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    return RawRoute("GET", METRICS_PATH, handle, lambda _: Role.VIEWER)
