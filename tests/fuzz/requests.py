"""HTTP requests that no browser would send, made of recorded ones. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import orjson

from tests.fuzz.frames import changed_json
from tests.fuzz.samples import Sample
from tests.fuzz.values import damaged, nested, odd_number, odd_text

_QUEUES = re.compile(rb'("(?:read|write)Queues") ?: ?\d{3,5}(?!\d)')
METHODS = (b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"get", b"G\0ET", b"PROPFIND", b"X" * 300)
SAFE = (b"GET", b"HEAD", b"OPTIONS")
# Paths that change something are tried only on what is there to be changed.
CHANGEABLE = (b"Fuzzed", b"fuzz")


class RequestMaker:
    """Requests of one connection, after the recorded ones."""

    def __init__(self, rng: random.Random, samples: Sequence[Sample]) -> None:
        self.rng = rng
        self._recorded = [_taken_apart(s.data) for s in samples]

    def request(self) -> bytes:
        """The next one."""
        rng = self.rng
        method, target, headers, body = rng.choice(self._recorded)
        headers = list(headers)
        if not any(word in target for word in CHANGEABLE) and method not in SAFE:
            method = b"GET"
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            kind = rng.random()
            if kind < 0.1:
                method = rng.choice(METHODS)
            elif kind < 0.45:
                target = self._target(target)
            elif kind < 0.8:
                self._header(headers)
            elif body:
                body = self._body(body)
                _set(headers, b"Content-Length", b"%d" % len(body))
            else:
                body = rng.choice((b"{}", b"x" * 100, nested(rng)))
                _set(headers, b"Content-Length", b"%d" % len(body))
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        body = _QUEUES.sub(rb"\1:64", body)  # as frames' _tame
        if body and rng.random() < 0.97:
            _set(headers, b"Content-Length", b"%d" % len(body))
        data = b"%s %s %s\r\n%s\r\n%s" % (method, target, self._version(), lines, body)
        return damaged(data, rng) if rng.random() < 0.05 else data

    def _version(self) -> bytes:
        if self.rng.random() < 0.98:
            return b"HTTP/1.1"
        return self.rng.choice((b"HTTP/1.0", b"HTTP/9.9", b"HTTP/2.0", b"", b"ICY"))

    def _target(self, target: bytes) -> bytes:
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            name = rng.choice((b"limit", b"offset", b"cursor", b"key", b"from", b"to", b"x"))
            text = odd_text(rng).encode("utf-8", "replace")[:2_000]
            joint = b"&" if b"?" in target else b"?"
            return target + joint + name + b"=" + _quoted(text)
        if kind == 1:
            parts = target.split(b"/")
            parts[rng.randrange(len(parts))] = _quoted(odd_text(rng).encode()[:2_000])
            return b"/".join(parts)
        if kind == 2:
            return target + rng.choice((b"/..", b"/%2e%2e/", b"//", b"%00", b"%ff", b"%", b"#x"))
        if kind == 3:
            return target.replace(b"0", b"%d" % odd_number(rng), 1)
        if kind == 4:
            return b"/" + b"a" * rng.choice((100, 8_000, 9_000))
        return rng.choice((b"*", b"", b"http://x/", b"http://[::1", b"/?" + b"a=1&" * 500))

    def _header(self, headers: list[tuple[bytes, bytes]]) -> None:
        rng = self.rng
        number = b"%d" % odd_number(rng)
        made = rng.choice((
            (b"Content-Length", number), (b"Content-Length", b"abc"), (b"Host", b"evil.example"),
            (b"Host", b""), (b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"gzip"),
            (b"Content-Encoding", b"deflate"), (b"Content-Encoding", b"br"),
            (b"Content-Type", b"text/plain"), (b"Content-Type", b"application/json; charset=x"),
            (b"Authorization", b"Bearer x"), (b"Authorization", b"Basic %%%"),
            (b"Authorization", b"RAFTMQ-HMAC-SHA256 " + number), (b"If-Match", b'"' + number),
            (b"If-None-Match", b"*"), (b"Expect", b"100-continue"), (b"Upgrade", b"websocket"),
            (b"Connection", b"Upgrade"), (b"Range", b"bytes=0-" + number), (b"X" * 300, b"x"),
            (b"X", b"x" * rng.choice((100, 8_000, 9_000))), (b"Last-Event-ID", number),
            (b"Origin", b"null"), (b"Accept", b"\xff"), (b" Odd", b"x"), (b"Od:d", b"x"),
        ))  # fmt: skip
        if rng.random() < 0.5:
            _set(headers, *made)
        else:
            headers.append(made)

    def _body(self, body: bytes) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return nested(rng)
        if kind < 0.8:
            try:
                return changed_json(body, rng)
            except orjson.JSONDecodeError:
                pass  # changed once too often already
        return damaged(body, rng)


def _quoted(text: bytes) -> bytes:
    return b"".join(b"%c" % c if chr(c).isalnum() else b"%%%02x" % c for c in text)


def _set(headers: list[tuple[bytes, bytes]], name: bytes, value: bytes) -> None:
    headers[:] = [h for h in headers if h[0].lower() != name.lower()] + [(name, value)]


def _taken_apart(data: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.split(b"\r\n")
    method, target, _ = first.split(b" ", 2)
    headers = [(n, v.strip()) for n, _, v in (line.partition(b":") for line in rest)]
    return method, target, headers, body
