"""`mqadmin consume`, which prints a topic's messages.

Without a group it pulls as a tool and commits nothing. It prints the existing messages of all
queues in store order, and with --follow also new messages as they arrive. Memory holds at most a
pull per queue and FOLLOWED_MAX further pulls. With a group it joins as a consumer, and commits the
messages that it has printed.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.client.admin import Admin
from raftmq.client.consumer.lite_pull_consumer import LitePullConfig, LitePullConsumer
from raftmq.client.consumer.offsets import ConsumeFrom
from raftmq.client.errors import ClientError
from raftmq.client.message import MessageExt, MessageQueue

from .command import Arguments, CommandError, parse_time
from .durations import parse_duration_ms
from .message_format import Show, show_as
from .terminal import Terminal

PULL_COUNT = 256
WAIT_MS = 10_000  # a broker holds an empty pull for this time
SHORT_WAIT_MS = 500  # the same, for a queue with messages
FOLLOWED_MAX = 4  # pulls waiting to be printed
TRIES_MAX = 20  # successive pulls without progress in a non-empty queue
PAUSE_S = 1.0  # before a retry after a missing answer
CHECK_S = 30.0  # between two checks for new queues
POLL_MS = 1_000
FIRST, LAST = "first", "last"


@dataclass(frozen=True, slots=True)
class Start:
    """The start position, which is `from_ms` (a time), or `back` messages before each queue's end,
    or the first message (None)."""

    from_ms: int | None = None
    back: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages to print."""

    topic: str
    queues: Sequence[str]
    start: Start
    expression: str
    expression_type: str
    follow: bool
    count: int | None

    def lets_pass(self, message: MessageExt) -> bool:
        """Return whether the message has a requested tag; brokers compare only hashes."""
        tags = {tag.strip() for tag in self.expression.split("||")}
        return self.expression_type != "TAG" or "*" in tags or message.tags in tags


class Printer:
    """Prints messages, at most `count_max` of them."""

    def __init__(self, terminal: Terminal, show: Show, count_max: int | None) -> None:
        self.count = 0
        self._terminal = terminal
        self._show = show
        self._count_max = count_max
        self._began_s = time.monotonic()

    @property
    def full(self) -> bool:
        return self._count_max is not None and self.count >= self._count_max

    def print(self, message: MessageExt) -> None:
        if not self.full:
            self._terminal.write(self._show(message))
            self.count += 1

    def flush(self) -> None:
        """Flush the output; report the count if standard output is not a terminal."""
        self._terminal.flush()
        if not self._terminal.is_terminal:
            per_s = self.count / max(time.monotonic() - self._began_s, 0.001)
            self._terminal.progress(f"{self.count:,} messages, {per_s:,.0f}/s")


async def consume(admin: Admin, arguments: Arguments, terminal: Terminal) -> int:
    selection = selection_of(arguments, time.time_ns() // 1_000_000)
    form, template = arguments.text("format"), arguments.exact("template")
    show = show_as(form, template, terminal=terminal.is_terminal)
    printer = Printer(terminal, show, selection.count)
    group = arguments.text("group")
    try:
        if group:
            await _consume_in(group, admin, selection, printer)
        else:
            await _read(admin, selection, printer, terminal)
    except asyncio.CancelledError:  # Ctrl-C
        if not selection.follow and not group:
            raise
    finally:
        terminal.end_progress()
    return 0


def selection_of(arguments: Arguments, now_ms: int) -> Selection:
    """Return the messages that the flags select. Raises CommandError."""
    tag, sql = arguments.text("tag"), arguments.text("sql")
    if tag and sql:
        raise CommandError("--tag or --sql, not both", usage=True)
    queues, follow = arguments.texts("queue"), arguments.on("follow")
    if arguments.text("group") and queues:
        raise CommandError("--queue is for reading without --group", usage=True)
    count = arguments.integer("count")
    if count is not None and count < 1:
        raise CommandError("--count is at least 1", usage=True)
    text = arguments.text("from") or (LAST if follow else FIRST)
    try:
        start = parse_start(text, now_ms)
    except ValueError as error:
        raise CommandError(f"--from: {error}", usage=True) from error
    return Selection(
        arguments.text("topic"),
        queues,
        start,
        sql or tag or "*",
        "SQL92" if sql else "TAG",
        follow,
        count,
    )


def parse_start(text: str, now_ms: int) -> Start:
    """Parse the value of --from. Raises ValueError."""
    if text == FIRST:
        return Start()
    if text == LAST:
        return Start(back=0)
    if text.startswith("-") and text[1:].isdigit():
        return Start(back=int(text[1:]))
    try:
        return Start(from_ms=now_ms - parse_duration_ms(text))
    except ValueError:
        try:
            return Start(from_ms=parse_time(text, now_ms))
        except ValueError as error:
            raise ValueError(f"first, last, -N, how long ago (15m), or a time; {error}") from None


class Cursor:
    """Reads a queue from `offset` on; `end` is the queue's end at the start."""

    def __init__(
        self, admin: Admin, queue: MessageQueue, selection: Selection, offset: int, end: int
    ) -> None:
        self.queue = queue
        self.end = end
        self.waiting: deque[MessageExt] = deque()
        self._admin = admin
        self._selection = selection
        self._offset = offset

    async def next(self) -> MessageExt | None:
        """Return the next message before `end`, or None. Raises ClientError, CommandError."""
        tries = 0
        while not self.waiting and self._offset < self.end:
            before = self._offset
            result = await self.pull(SHORT_WAIT_MS)
            self.waiting.extend(message for message in result if message.queue_offset < self.end)
            tries = 0 if self._offset > before else tries + 1
            if tries == TRIES_MAX:
                name = f"{self.queue.broker_name}:{self.queue.queue_id}"
                raise CommandError(f"queue {name} gives nothing from offset {before} on")
        return self.waiting.popleft() if self.waiting else None

    async def pull(self, wait_ms: int) -> list[MessageExt]:
        selection, offset = self._selection, self._offset
        result, following = await self._admin.message.pull(
            self.queue, offset, PULL_COUNT, selection.expression, selection.expression_type, wait_ms
        )
        # A lagging replica may return a smaller offset.
        self._offset = max(offset, following)
        return [m for m in result if m.queue_offset >= offset and selection.lets_pass(m)]


async def _read(admin: Admin, selection: Selection, printer: Printer, terminal: Terminal) -> None:
    queues = chosen(
        (await admin.cluster.route(selection.topic)).read_queues(selection.topic), selection
    )
    cursors = await asyncio.gather(*(_cursor(admin, queue, selection) for queue in queues))
    await _print_past(cursors, printer)
    if selection.follow and not printer.full:
        await _Follower(admin, selection, printer, terminal).follow(cursors)


def chosen(queues: Sequence[MessageQueue], selection: Selection) -> list[MessageQueue]:
    """Return the selected queues. Raises CommandError."""
    if not selection.queues:
        return sorted(queues)
    result: set[MessageQueue] = set()
    for text in selection.queues:
        broker, _, number = text.rpartition(":")
        named = [
            queue
            for queue in queues
            if str(queue.queue_id) == number and broker in ("", queue.broker_name)
        ]
        if not named:
            known = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in sorted(queues))
            raise CommandError(f"topic {selection.topic} has no queue {text}; there are {known}")
        result.update(named)
    return sorted(result)


async def _cursor(admin: Admin, queue: MessageQueue, selection: Selection) -> Cursor:
    end, first = await admin.offset.max(queue), await admin.offset.min(queue)
    start = selection.start
    if start.from_ms is not None:
        first = await admin.offset.search(queue, start.from_ms)
    elif start.back is not None:
        first = max(first, end - start.back)
    return Cursor(admin, queue, selection, first, end)


async def _print_past(cursors: Sequence[Cursor], printer: Printer) -> None:
    """Print the messages before each queue's end, in the order of the store times."""
    heap: list[tuple[int, MessageQueue, int, MessageExt, Cursor]] = []

    async def put(cursor: Cursor) -> None:
        message = await cursor.next()
        if message is not None:
            position = (message.store_timestamp_ms, cursor.queue, message.queue_offset)
            heapq.heappush(heap, (*position, message, cursor))

    await asyncio.gather(*(put(cursor) for cursor in cursors))
    while heap and not printer.full:
        *_, message, cursor = heapq.heappop(heap)
        printer.print(message)
        if not cursor.waiting:  # before a request
            printer.flush()
        await put(cursor)
    printer.flush()


class _Follower:
    def __init__(
        self, admin: Admin, selection: Selection, printer: Printer, terminal: Terminal
    ) -> None:
        self._admin = admin
        self._selection = selection
        self._printer = printer
        self._terminal = terminal
        self._came: asyncio.Queue[list[MessageExt] | BaseException] = asyncio.Queue(FOLLOWED_MAX)

    async def follow(self, cursors: Sequence[Cursor]) -> None:
        """Print up to the requested count. Raises ClientError for permanent errors."""
        known = {cursor.queue for cursor in cursors}
        tasks = [asyncio.create_task(self._pull(cursor)) for cursor in cursors]
        tasks.append(asyncio.create_task(self._find_queues(known, tasks)))
        try:
            while not self._printer.full:
                came = await self._came.get()
                if isinstance(came, BaseException):
                    raise came
                for message in came:
                    self._printer.print(message)
                self._printer.flush()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pull(self, cursor: Cursor) -> None:
        silent = False
        while True:
            try:
                result = await cursor.pull(WAIT_MS)
                silent = False
            except ClientError as error:
                if not error.retriable:
                    await self._came.put(error)
                    return
                if not silent:
                    self._terminal.say(f"mqadmin: {error.message}; asking again")
                silent = True
                await asyncio.sleep(PAUSE_S)
                continue
            except Exception as error:  # a bug, which ends the command
                await self._came.put(error)
                return
            if result:
                await self._came.put(result)

    async def _find_queues(self, known: set[MessageQueue], tasks: list[asyncio.Task[None]]) -> None:
        """Find new queues, and read them from their first message."""
        while not self._selection.queues:
            await asyncio.sleep(CHECK_S)
            try:
                route = await self._admin.cluster.route(self._selection.topic)
                for queue in sorted(set(route.read_queues(self._selection.topic)) - known):
                    first = await self._admin.offset.min(queue)
                    cursor = Cursor(self._admin, queue, self._selection, first, first)
                    tasks.append(asyncio.create_task(self._pull(cursor)))
                    known.add(queue)
            except ClientError:  # the next check repeats it
                continue


async def _consume_in(group: str, admin: Admin, selection: Selection, printer: Printer) -> None:
    start, consume_from, from_ms = selection.start, ConsumeFrom.FIRST_OFFSET, 0
    if start.from_ms is not None:
        consume_from, from_ms = ConsumeFrom.TIMESTAMP, start.from_ms
    elif start.back == 0:
        consume_from = ConsumeFrom.LAST_OFFSET
    elif start.back is not None:
        raise CommandError("--from -N is for reading without --group", usage=True)
    config = LitePullConfig(
        auto_commit_interval_ms=1_000,
        consume_from=consume_from,
        consume_from_timestamp_ms=from_ms,
    )
    consumer = LitePullConsumer(
        group,
        list(admin.name_servers),
        config=config,
        instance_config=admin.instance_config,
    )
    await admin.cluster.route(selection.topic)  # a missing topic is reported at once
    consumer.subscribe(selection.topic, selection.expression, selection.expression_type)
    async with consumer:
        # Each poll, and the consumer's stop, commit the earlier polls, which were printed.
        # Unprinted messages are not committed.
        while not printer.full:
            left = PULL_COUNT if selection.count is None else selection.count - printer.count
            for message in await consumer.poll(POLL_MS, min(left, PULL_COUNT)):
                printer.print(message)
            printer.flush()
        await consumer.commit()
