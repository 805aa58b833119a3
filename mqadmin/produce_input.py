"""The input of `mqadmin produce`, as lines, JSON lines or whole files.

A thread reads the input and hands it over in chunks. So memory is bounded, a pipe's lines are sent
as they arrive, and Ctrl-C does not wait for a line.
"""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import orjson

from raftmq.client.message import BODY_SIZE_BYTES_MAX, Message
from raftmq.ops.strict_json import loads

from .command import CommandError
from .durations import parse_duration_ms

STDIN = "-"
CHUNK_BYTES = 64 * 1024
CHUNKS_MAX = 4  # read ahead
LINE_BYTES_MAX = 2 * BODY_SIZE_BYTES_MAX  # the body of a JSON line may be Base64
# Fields of a JSON line. The fields of `consume` with a message's position are ignored.
WHERE_IT_WAS = frozenset(
    {"topic", "broker", "queue", "offset", "msgId", "bornMs", "storedMs", "reconsumeTimes"}
)
FIELDS = frozenset({"body", "bodyBase64", "tags", "keys", "properties", "delay"})


@dataclass(frozen=True, slots=True)
class Template:
    """Properties of all messages; a JSON line's own fields win."""

    topic: str
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic,
            body,
            self.tags or None,
            list(self.keys) or None,
            dict(self.properties),
            delay_time=timedelta(milliseconds=self.delay_ms) if self.delay_ms else None,
        )


def check_files(names: Sequence[str]) -> None:
    """Raise CommandError for an unreadable file, before the first send."""
    for name in names:
        if name == STDIN:
            continue
        try:
            with open(name, "rb") as file:
                if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                    raise CommandError(f"{name} is a directory", usage=True)
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror}", usage=True) from error


async def bodies_of_files(names: Sequence[str]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield each file's name and content. Raises CommandError, OSError."""
    for name in names:
        body = bytearray()
        async for chunk in _chunks(name):
            body += chunk
            if len(body) > BODY_SIZE_BYTES_MAX:
                raise CommandError(f"{name} is larger than {BODY_SIZE_BYTES_MAX:,} bytes")
        yield name, bytes(body)


async def lines_of(names: Sequence[str]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield every non-blank line with its position. Raises CommandError, OSError."""
    for name in names or (STDIN,):
        where = "line" if name == STDIN else f"{name}:"
        number, rest = 0, b""
        async for chunk in _chunks(name):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise CommandError(f"{where} {number + 1} is longer than {LINE_BYTES_MAX:,} bytes")
            for line in lines:
                number += 1
                if line.strip():
                    yield f"{where} {number}", line
        if rest.strip():
            yield f"{where} {number + 1}", rest


def parse_json(line: bytes, template: Template) -> Message:
    """Return the message of a JSON line. Raises ValueError."""
    try:
        given = loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError("no JSON object")
    unknown = given.keys() - FIELDS - WHERE_IT_WAS
    if unknown:
        known = ", ".join(sorted(FIELDS))
        raise ValueError(f"unknown field {min(unknown)!r}; there are {known}")
    delay = _of(given, "delay", str, "")
    own = replace(
        template,
        tags=_of(given, "tags", str, "") or template.tags,
        keys=_keys(given.get("keys")) or template.keys,
        properties={**template.properties, **_properties(given.get("properties"))},
        delay_ms=parse_duration_ms(delay) if delay else template.delay_ms,
    )
    return own.message(_body(given))


def _body(given: Mapping[str, Any]) -> bytes:
    if ("body" in given) == ("bodyBase64" in given):
        raise ValueError("expected body or bodyBase64")
    if "bodyBase64" in given:
        try:
            return base64.b64decode(_of(given, "bodyBase64", str, ""), validate=True)
        except ValueError as error:
            raise ValueError(f"bodyBase64: {error}") from None
    body = given["body"]
    return body.encode() if isinstance(body, str) else orjson.dumps(body)


def _keys(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return tuple(given.split())
    if isinstance(given, list) and all(isinstance(key, str) for key in given):
        return tuple(given)
    raise ValueError("keys: expected a text or a list of texts")


def _properties(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, dict) and all(isinstance(value, str) for value in given.values()):
        return given
    raise ValueError("properties: expected an object of texts")


def _of(given: Mapping[str, Any], name: str, kind: type[str], default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected a text")
    return value


async def _chunks(name: str) -> AsyncIterator[bytes]:
    """Yield chunks as they arrive. Raises OSError."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_MAX)

    def put(chunk: bytes | OSError) -> None:
        room.acquire()
        loop.call_soon_threadsafe(came.put_nowait, chunk)

    # A daemon thread, because the loop's end would wait for a pool's thread.
    threading.Thread(target=_read, args=(name, put), daemon=True).start()
    while True:
        chunk = await came.get()
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            return
        yield chunk


def _read(name: str, put: Callable[[bytes | OSError], None]) -> None:
    """Read a file or standard input to its end, then put b"". Runs in a thread."""
    try:
        # A file object's lock would be held at the end of the program.
        file = 0 if name == STDIN else os.open(name, os.O_RDONLY)
        try:
            while chunk := os.read(file, CHUNK_BYTES):
                put(chunk)
            put(b"")
        finally:
            if name != STDIN:
                os.close(file)
    except OSError as error:
        put(error)
    except RuntimeError:  # the loop has ended
        pass
