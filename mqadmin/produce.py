"""`mqadmin produce`, which sends lines, JSON lines or files as messages.

Every message is acknowledged, rejected (certainly not stored), or of unknown outcome. The first two
kinds of failures are reported on standard error, and stop the command unless --keep-going is set.
Exit status is 0 if all are acknowledged, 1 for rejected messages, 4 for unknown outcomes, and 130
if interrupted, after the outcomes of all messages in flight.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import orjson

from raftmq.client.admin import Admin
from raftmq.client.errors import ClientError
from raftmq.client.message import RESERVED_PROPERTIES, Message, MessageQueue, SendResult
from raftmq.client.producer.producer import Producer
from raftmq.client.producer.sender import SendConfig

from .command import Arguments, CommandError
from .durations import parse_duration_ms
from .messages import producer_of
from .produce_input import (
    STDIN,
    Template,
    bodies_of_files,
    check_files,
    lines_of,
    parse_json,
)
from .terminal import Terminal

REFUSED, UNKNOWN, INTERRUPTED = 1, 4, 130
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
WINDOW_MAX = 10_000
REPORTED_MAX = 20  # reported failures; further failures are counted

Make = Callable[[bytes], Message]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the sends."""

    queue: MessageQueue | None
    window: int
    timeout_ms: int
    keep_going: bool


@dataclass(slots=True)
class Tally:
    """The outcomes."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    interrupted: bool = False
    began_s: float = field(default_factory=time.monotonic)

    @property
    def per_s(self) -> float:
        return self.acknowledged / max(time.monotonic() - self.began_s, 0.001)

    @property
    def bad(self) -> int:
        return self.refused + self.unknown

    @property
    def status(self) -> int:
        if self.unknown:
            return UNKNOWN
        if self.refused:
            return REFUSED
        return INTERRUPTED if self.interrupted else 0


async def produce(admin: Admin, arguments: Arguments, terminal: Terminal) -> int:
    template = template_of(arguments)
    settings = settings_of(arguments)
    names = arguments.texts("files")
    source, make = _source(arguments.text("format"), names, template)
    check_files(names)
    if STDIN in (names or (STDIN,)) and sys.stdin.isatty():
        terminal.say("a line is a message; Ctrl-D ends")
    # A missing topic is reported before the input is read
    await admin.cluster.route(template.topic)
    config = SendConfig(in_flight_max=settings.window + 1)
    async with producer_of(admin, config) as producer:
        sending = Sending(producer, settings, terminal)
        await sending.send_all(source, make)
        terminal.end_progress()
    _tell(template.topic, sending.tally, terminal, as_json=arguments.on("json"))
    return sending.tally.status


class Sending:
    """Sends messages, at most `window` at a time."""

    def __init__(self, producer: Producer, settings: Settings, terminal: Terminal) -> None:
        self.tally = Tally()
        self._producer = producer
        self._settings = settings
        self._terminal = terminal
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._room = asyncio.Event()

    async def send_all(self, source: AsyncIterator[tuple[str, bytes]], make: Make) -> None:
        """Send the source's messages, await outcomes. Raises CommandError, OSError after that."""
        try:
            async for position, body in source:
                await self._wait(lambda: self._has_room)
                if self.tally.bad and not self._settings.keep_going:
                    break
                self._send(position, body, make)
        except asyncio.CancelledError:  # messages in flight are awaited
            self.tally.interrupted = True
        finally:
            await self._wait(lambda: not self._in_flight)

    @property
    def _has_room(self) -> bool:
        return (
            self._in_flight < self._settings.window and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX
        )

    async def _wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._room.clear()
            await self._room.wait()

    def _send(self, position: str, body: bytes, make: Make) -> None:
        settings = self._settings
        try:
            message = make(body)
            size_bytes = len(message.body)
            done = partial(self._done, position, size_bytes)
            self._producer.send_nowait(message, done, settings.timeout_ms, settings.queue)
        except (ClientError, ValueError) as error:
            self._bad(position, error)
            return
        self._in_flight += 1
        self._in_flight_bytes += size_bytes

    def _done(
        self, position: str, size_bytes: int, result: SendResult | None, error: ClientError | None
    ) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size_bytes
        if error is None:
            self.tally.acknowledged += 1
        else:
            self._bad(position, error)
        tally = self.tally
        bad = f", {tally.bad:,} not" if tally.bad else ""
        self._terminal.progress(
            f"{tally.acknowledged:,} acknowledged{bad}, {self._in_flight:,} in flight, "
            f"{tally.per_s:,.0f}/s"
        )
        self._room.set()

    def _bad(self, position: str, error: ClientError | ValueError) -> None:
        unknown = isinstance(error, ClientError) and error.outcome_unknown
        if unknown:
            self.tally.unknown += 1
        else:
            self.tally.refused += 1
        if self.tally.bad <= REPORTED_MAX:
            subject = "it is unknown whether it is stored" if unknown else "not stored"
            self._terminal.say(f"mqadmin: {position}: {subject}: {error}")
        if self.tally.bad == REPORTED_MAX:
            self._terminal.say("mqadmin: others are counted only")


def template_of(arguments: Arguments) -> Template:
    """Return the properties of all messages, from the flags. Raises CommandError."""
    delay = arguments.text("delay")
    try:
        delay_ms = parse_duration_ms(delay) if delay else 0
    except ValueError as error:
        raise CommandError(f"--delay: {error}", usage=True) from error
    return Template(
        arguments.text("topic"),
        arguments.text("tags"),
        arguments.texts("key"),
        _properties(arguments.texts("property")),
        delay_ms,
    )


def _properties(texts: tuple[str, ...]) -> Mapping[str, str]:
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"--property: {text!r} is not NAME=VALUE", usage=True)
        if name in RESERVED_PROPERTIES:
            raise CommandError(
                f"--property: {name} has a flag, or is set by clients and brokers alone", usage=True
            )
        result[name] = value
    return result


def settings_of(arguments: Arguments) -> Settings:
    """Return the settings of the sends. Raises CommandError."""
    queue, window = None, arguments.integer("window") or 0
    text = arguments.text("queue")
    if text:
        broker, _, number = text.rpartition(":")
        if not broker or not number.isdigit():
            raise CommandError(f"--queue: {text!r} is not BROKER:ID", usage=True)
        queue = MessageQueue(arguments.text("topic"), broker, int(number))
    if not 1 <= window <= WINDOW_MAX:
        raise CommandError(f"--window is 1 to {WINDOW_MAX:,}", usage=True)
    timeout_s = arguments.number("timeout") or 0.0
    if timeout_s <= 0:
        raise CommandError("--timeout is above 0", usage=True)
    return Settings(queue, window, round(timeout_s * 1000), arguments.on("keepGoing"))


def _source(
    form: str, names: tuple[str, ...], template: Template
) -> tuple[AsyncIterator[tuple[str, bytes]], Make]:
    if form == "file":
        if not names:
            raise CommandError("--format file: name files (- is standard input)", usage=True)
        return bodies_of_files(names), template.message
    make = partial(parse_json, template=template) if form == "json" else template.message
    return lines_of(names), make


def _tell(topic: str, tally: Tally, terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        figures = {
            "topic": topic,
            "acknowledged": tally.acknowledged,
            "refused": tally.refused,
            "unknown": tally.unknown,
            "interrupted": tally.interrupted,
            "perSecond": round(tally.per_s, 1),
        }
        terminal.write(orjson.dumps(figures, option=orjson.OPT_APPEND_NEWLINE))
    else:
        text = f"{tally.acknowledged:,} messages acknowledged in topic {topic}"
        if tally.bad:
            text += f", {tally.refused:,} refused, {tally.unknown:,} of unknown outcome"
        terminal.write(f"{text} ({tally.per_s:,.0f}/s)\n".encode())
    terminal.flush()
