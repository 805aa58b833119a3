"""Logs as events on standard error: text or JSON, one line each, with rate limits.

Everything is logged as `event key=value …: message` through the standard library's loggers, with
the values as arguments: `log.info("role_changed node=%s term=%s", node, term)`. The JSON form
parses the template: `event` is its first word, every `key=%s` a field with the argument's type,
`message` the text. The `context` has fields that are constant for the process (service, node,
group) or computed for each line (term).

Each template of a logger may write LINES_MAX lines in WINDOW_S seconds. Further lines are counted,
and reported as `log_suppressed` at the first line after the window.

Records marked `from_peer` are about input from a peer, which may cause any number of them. They
share a separate rate limit over all templates, and contain their traceback within the line. The
same applies to libraries that serve peers. Any record may contain text from peers, so all are
escaped and truncated (ops.log_text).
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from .log_text import field_of, message_of, short_trace_of, trace_of

if TYPE_CHECKING:
    from .options import Loaded

LINES_MAX = 100  # further lines of a kind add nothing new
WINDOW_S = 10.0
TEMPLATES_MAX = 1_000  # at the same time; ours are some 150
TEMPLATE_CHARS_MAX = 500  # the prefix that distinguishes templates
PEER_LIBRARIES = frozenset({"aiohttp", "asyncio", "grpc"})  # loggers of code that peers reach
PEER_BURST_S = 10  # quiet seconds that allow a burst of their lines
LINES_SUPPRESSED = "Suppressed log lines about faults of peers."
# Variables of Apache's scripts, for the directory of their files and Java's options.
APACHES_VARIABLES = {"ROCKETMQ_HOME", "JAVA_OPT", "JAVA_OPT_EXT"}
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_PIECE = re.compile(
    r"(?:\b([A-Za-z_]\w*)=)?%[-#0 +]*\d*(?:\.\d+)?([sdifrxg%])|\b([A-Za-z_]\w*)=([^\s%,;]+)"
)
_EVENT = re.compile(r"[a-z][a-z0-9_]*")
_OWN = frozenset({"time", "level", "logger", "event", "message", "exception"})

Context = Mapping[str, object | Callable[[], object]]


def set_up(
    log_format: str,
    level: str,
    context: Context,
    stream: TextIO | None = None,
    *,
    peer_lines_per_s: float = 2,
) -> None:
    """Make the root logger write events. The owner of `context` may change it later. A callable in
    it is called for each line, so it must be cheap and must not raise."""
    handler = EventHandler(stream or sys.stderr, peer_lines_per_s=peer_lines_per_s)
    handler.setFormatter(JsonFormatter(context) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def suppressed_lines() -> int:
    """Return the number of suppressed lines about peers since the start."""
    handlers = logging.getLogger().handlers
    return sum(h.peers.suppressed for h in handlers if isinstance(h, EventHandler))


def levels() -> dict[str, str]:
    """Return every logger's effective level; "root" is inherited by all others."""
    names = {"root": logging.getLevelName(logging.getLogger().level)}
    for name in sorted(logging.Logger.manager.loggerDict):
        logger = logging.getLogger(name)
        names[name] = logging.getLevelName(logger.getEffectiveLevel())
    return names


def set_level(logger: str, level: str) -> None:
    """Change a level while the process runs; level "" restores inheritance. Raises ValueError for
    an unknown level, KeyError for an unknown logger."""
    if level and level.upper() not in LEVELS:
        raise ValueError(f"unknown level {level!r}, expected one of {', '.join(LEVELS)}")
    if logger == "root":
        logging.getLogger().setLevel(level.upper() or "INFO")
        return
    if logger not in logging.Logger.manager.loggerDict:
        raise KeyError(logger)
    logging.getLogger(logger).setLevel(level.upper() or logging.NOTSET)


class PeerLines:
    """The rate limit for lines that peers cause, a token bucket."""

    def __init__(self, per_s: float) -> None:
        self.suppressed = 0
        self._per_s = per_s
        self._tokens = self._tokens_max = max(1.0, per_s * PEER_BURST_S)
        self._since_s = 0.0
        self._reported = 0  # suppressed lines already reported

    def take(self, now_s: float) -> bool:
        """Return whether a further line may be written now."""
        self._tokens = min(self._tokens_max, self._tokens + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        if self._tokens < 1:
            self.suppressed += 1
            return False
        self._tokens -= 1
        return True

    def unreported(self) -> int:
        """Return the number of suppressed lines since the last call."""
        unreported, self._reported = self.suppressed - self._reported, self.suppressed
        return unreported


class EventHandler(logging.StreamHandler[TextIO]):
    """Writes lines, within the limits per template. Its base class does the locking."""

    def __init__(
        self,
        stream: TextIO,
        clock_s: Callable[[], float] = time.monotonic,
        lines_max: int = LINES_MAX,
        peer_lines_per_s: float = 2,
    ) -> None:
        super().__init__(stream)
        self.peers = PeerLines(peer_lines_per_s)
        self._clock_s = clock_s
        self._lines_max = lines_max
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}  # → (end of the window, lines)

    def emit(self, record: logging.LogRecord) -> None:
        now_s = self._clock_s()
        if _is_from_peer(record):
            if not self.peers.take(now_s):
                return
            if lines := self.peers.unreported():
                self._log_suppressed(record.name, "lines_about_peers", lines)
            super().emit(record)
            return
        self._close_windows(now_s)
        key = (record.name, str(record.msg)[:TEMPLATE_CHARS_MAX])
        end_s, lines = self._windows.get(key, (now_s + WINDOW_S, 0))
        if lines or len(self._windows) < TEMPLATES_MAX:
            self._windows[key] = (end_s, lines + 1)
        if lines < self._lines_max:
            super().emit(record)

    def _close_windows(self, now_s: float) -> None:
        ended = [key for key, (end_s, _) in self._windows.items() if end_s <= now_s]
        for key in ended:
            _, lines = self._windows.pop(key)
            if lines > self._lines_max:
                name, template = key
                kind = template.split(" ", 1)[0]
                self._log_suppressed(name, kind, lines - self._lines_max)

    def _log_suppressed(self, name: str, kind: str, lines: int) -> None:
        text = "log_suppressed of=%s lines=%d seconds=%d"
        values = (kind, lines, int(WINDOW_S))
        super().emit(logging.LogRecord(name, logging.WARNING, __file__, 0, text, values, None))


class TextFormatter(logging.Formatter):
    """Formats each record as a line of text, and its traceback's lines if no peer can cause it."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record)} {record.levelname} {record.name}"
        error, trace = _error_of(record), ""
        if error is not None:
            is_short = _is_from_peer(record)
            trace = f" error={short_trace_of(error)}" if is_short else f"\n{trace_of(error)}"
        return f"{head} {message_of(record.msg, record.args)}{trace}"


class JsonFormatter(logging.Formatter):
    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        event, pieces = _taken_apart(str(record.msg)[:TEMPLATE_CHARS_MAX])
        time_text = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time_text.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "event": event,
        }
        for key, value in self._context.items():
            line[key] = value() if callable(value) else value
        line |= _fields(pieces, record.args)
        line["message"] = message_of(record.msg, record.args)
        if (error := _error_of(record)) is not None:
            line["exception"] = trace_of(error)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _is_from_peer(record: logging.LogRecord) -> bool:
    """Return whether a peer can cause the record."""
    return getattr(record, "from_peer", False) or record.name.partition(".")[0] in PEER_LIBRARIES


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def report_configuration(loaded: Loaded[Any], environment: Mapping[str, str]) -> None:
    """Log the keys of a configuration that were set twice, have no effect or are not needed, and
    variables of Apache's scripts."""
    log = logging.getLogger("raftmq.ops.settings")
    for key, location in loaded.repeated.items():
        log.warning("config_repeated key=%s location=%s: the last one counts", key, location)
    for text in loaded.warnings:
        log.warning("config_without_effect %s", text)
    if keys := loaded.not_needed:
        log.info("config_not_needed count=%d keys=%s", len(keys), ",".join(keys))
    for name in sorted(APACHES_VARIABLES & environment.keys()):
        log.info("variable_without_effect %s: this program needs no %s", name, name)


@functools.lru_cache(TEMPLATES_MAX)
def _taken_apart(template: str) -> tuple[str, tuple[tuple[str, str | None], ...]]:
    """Parse a template into the event and, in order, (key, literal, or None for the next argument).
    The key is "" without a field."""
    first = _EVENT.match(template)
    pieces: list[tuple[str, str | None]] = []
    for match in _PIECE.finditer(template):
        key, conversion, literal_key, literal = match.groups()
        if literal_key:
            pieces.append((literal_key, literal))
        elif conversion != "%":
            pieces.append((key or "", None))
    return (first[0] if first else "message"), tuple(pieces)


def _fields(pieces: tuple[tuple[str, str | None], ...], args: object) -> dict[str, object]:
    """Return the fields' names and values. Arguments without a key appear only in the message."""
    given = list(args) if isinstance(args, tuple) else []
    fields: dict[str, object] = {}
    for key, literal in pieces:
        if literal is not None:
            value: object = literal
        elif given:
            value = given.pop(0)
        else:
            break
        if key and key not in _OWN:
            fields[key] = field_of(value)
    return fields
