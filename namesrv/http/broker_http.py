"""HTTP client for brokers' node APIs, limited in number, time and size.

A missing answer is a `NodeSilent` with a readable message; an answer with an error status is an
`Answer`. `WrongAnswer` is an answer with a status, media type, form or types that no node API has.
`cluster_token` selects the brokers that may see the cluster's token, and `reach` the brokers that
get requests at all.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import orjson
from yarl import URL

from raftmq.web.problem import MEDIA_TYPE as PROBLEM

from .cluster_token import ClusterToken
from .reach import HTTPS, Contact

CONCURRENCY_MAX = 32  # requests in flight
CONNECT_TIMEOUT_S = 1.0
VIEW_TIMEOUT_S = 2.0  # for a section of a page, so that a hanging broker does not block the page
WRITE_TIMEOUT_S = 12.0  # longer than brokers need to report an unknown outcome
STREAM_SILENCE_S = 60.0  # brokers send comment lines; a stream without them for this time is dead
ANSWER_BYTES_MAX = 16 * 1024 * 1024
JSON = "application/json"
METRICS = ("text/plain", "application/openmetrics-text")  # of /metrics and /health
STATUSES = frozenset(map(int, HTTPStatus))


class NodeSilent(Exception):
    """No answer arrived. `sent` means that the request may have had an effect."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.reason = text
        self.sent = sent


class WrongAnswer(NodeSilent):
    """An answer that no node API gives. `sent` means that a change may have been made."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's answer. `headers` ignores case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False  # the request may have changed the broker

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def version(self) -> str:
        """Return the ETag without quotes, or ""."""
        return self.headers.get("etag", "").removeprefix("W/").strip('"')

    def json(self, kind: Any = dict[str, Any]) -> Any:
        """Decode the body as `kind` (namesrv.http.seen). Raises WrongAnswer."""
        try:
            value = orjson.loads(self.body)
            msgspec.convert(value, kind)
        except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
            is_json = isinstance(error, msgspec.ValidationError)
            form = "has other parts than a broker's" if is_json else "is no JSON"
            text = f"the answer ({self.status}) {form}: {error}"
            raise WrongAnswer(text, sent=self.changes) from error
        return value

    def problem(self) -> dict[str, Any] | None:
        """Return the fields of a problem; None if the body is no JSON object."""
        try:
            fields = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None
        return fields if isinstance(fields, dict) else None

    def reason(self) -> str:
        problem = self.problem()
        reported = self.body[:200].decode("utf-8", "replace")
        if problem is not None:
            reported = str(problem.get("detail") or problem.get("title") or "")
        return f"{self.status} {reported}" if reported else str(self.status)


class Nodes:
    """The client for all brokers. Call `start` and `stop` once each."""

    def __init__(
        self,
        token: ClusterToken,
        contact: Callable[[str], Contact],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`contact(http_address)` returns the target of requests. `tls()` returns the trusted CAs
        for HTTPS, None for the system's."""
        self._tls = tls
        self._contact = contact
        self._token = token
        self._slots = asyncio.Semaphore(CONCURRENCY_MAX)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            # CONCURRENCY_MAX limits requests, without streams
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,  # a broker could otherwise send decompression bombs
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    def distrusted(self, http_address: str) -> str:
        """Return the reason not to send a broker secrets, or ""."""
        try:
            url = url_of(http_address, "/")
        except aiohttp.InvalidURL:
            return _no_address(http_address)
        return self._token.distrusted(url, http_address)

    async def ask(
        self,
        http_address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send a request with a percent-encoded `path`. Raises NodeSilent."""
        timeout_s = timeout_s or VIEW_TIMEOUT_S
        assert self._session is not None, "not started"
        if not http_address:
            raise NodeSilent("it has told no HTTP address", sent=False)
        try:
            url = url_of(http_address, path, query)
        except aiohttp.InvalidURL as error:
            raise NodeSilent(_no_address(http_address), sent=False) from error
        contact = self._contact(http_address)
        if contact.refused:
            raise NodeSilent(f"it is not asked: {contact.refused}", sent=False)
        requested = {**(headers or {}), **self._token.headers(url, http_address)}
        if body is not None:
            requested.setdefault("Content-Type", JSON)
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        sent = False
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                request = self._session.request(
                    method, _at(contact, url), data=body, headers=requested | _named(contact, url),
                    timeout=limit, allow_redirects=False, ssl=self._tls() or True,
                    server_hostname=_name(contact, url),
                )  # fmt: skip
                sent = method != "GET"
                async with request as response:
                    _check_plain(response)
                    data = await read_within(response, ANSWER_BYTES_MAX)
                why = self._token.withheld(url, http_address)
                if why and response.status == 401:
                    data = orjson.dumps({"detail": f"it is not shown the cluster's token: {why}"})
                return checked(Answer(response.status, data, response.headers, sent))
        except aiohttp.ClientConnectorError as error:
            raise NodeSilent(f"no connection: {_plain(error)}", sent=False) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise NodeSilent(f"no connection within {CONNECT_TIMEOUT_S:g} s", sent=False) from error
        except TimeoutError as error:
            raise NodeSilent(f"no answer within {timeout_s:g} s", sent=sent) from error
        except aiohttp.ClientError as error:
            text = f"the connection broke: {error or type(error).__name__}"
            raise NodeSilent(text, sent=sent) from error

    async def view(
        self, http_address: str, path: str, query: Mapping[str, str] | None = None
    ) -> Any:
        """Return the JSON of a GET. Raises NodeSilent, also for an error status."""
        answer = await self.ask(http_address, "GET", path, query=query)
        if not answer.ok:
            raise NodeSilent(answer.reason(), sent=False)
        return answer.json()

    @asynccontextmanager
    async def stream(
        self, http_address: str, path: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a stream of events, which does not count towards CONCURRENCY_MAX. Raises
        ClientError, TimeoutError."""
        assert self._session is not None, "not started"
        limit = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=STREAM_SILENCE_S
        )
        url = url_of(http_address, path)
        requested = {**headers, **self._token.headers(url, http_address)}
        contact = self._contact(http_address)
        if contact.refused:
            raise aiohttp.ClientConnectionError(f"it is not asked: {contact.refused}")
        async with self._session.get(
            _at(contact, url), headers=requested | _named(contact, url), timeout=limit,
            allow_redirects=False, ssl=self._tls() or True, server_hostname=_name(contact, url),
        ) as response:  # fmt: skip
            _check_plain(response)
            yield response


def url_of(http_address: str, path: str, query: Mapping[str, str] | None = None) -> URL:
    """Build a URL with the encoded `path`. A registered address with HTTPS starts with https://.
    Raises InvalidURL (a ClientError) for an invalid registered address."""
    scheme = "https" if http_address.startswith(HTTPS) else "http"
    try:
        url = URL(f"{scheme}://{http_address.removeprefix(HTTPS)}{path}", encoded=True)
        if not url.host or not url.port:  # these properties parse the authority
            raise ValueError("no host, or no port")
    except ValueError as error:
        raise aiohttp.InvalidURL(http_address, str(error)) from error
    return url.with_query(dict(query)) if query else url


def checked(answer: Answer) -> Answer:
    """Return an answer that a node API can give. Raises WrongAnswer. An error may have any media
    type, because a proxy may have sent it."""
    status, media_type = answer.status, answer.media_type
    text = ""
    if status not in STATUSES or not (200 <= status < 300 or status == 304 or status >= 400):
        text = f"it answers with status {status}"
    elif answer.ok and answer.body and media_type not in (JSON, PROBLEM, *METRICS):
        text = f"it answers {media_type[:80] or 'no media type'} instead of JSON"
    if text:
        raise WrongAnswer(text, sent=answer.changes)
    return answer


def _at(contact: Contact, url: URL) -> URL:
    return url.with_host(contact.host) if contact.host else url


def _named(contact: Contact, url: URL) -> dict[str, str]:
    """Return the Host header for a request to a different address."""
    return {"Host": url.authority} if contact.host else {}


def _name(contact: Contact, url: URL) -> str | None:
    """Return the name for the certificate check; None for the URL's."""
    return url.host if contact.host and url.scheme == "https" else None


def _no_address(http_address: str) -> str:
    return f"{http_address} is no HTTP address"


def _check_plain(response: aiohttp.ClientResponse) -> None:
    """Raise ClientPayloadError (a ClientError) for a compressed answer."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise aiohttp.ClientPayloadError(f"it answers in {encoding!r:.40}, unasked")


async def read_within(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body of an answer. Raises ClientPayloadError (a ClientError) above the limit."""
    parts, size_bytes = [], 0
    async for part in response.content.iter_chunked(256 * 1024):
        size_bytes += len(part)
        if size_bytes > bytes_max:
            raise aiohttp.ClientPayloadError(f"it answers more than {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


def _plain(error: aiohttp.ClientConnectorError) -> str:
    """Return the system's error text, without asyncio's repetition of the address."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is refused: {error.certificate_error}"
    number = error.os_error.errno
    if isinstance(error.os_error, ssl.SSLError):
        return f"TLS: {error.os_error.reason or error.os_error}"
    return os.strerror(number).lower() if number else str(error.os_error)
