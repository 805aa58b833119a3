"""Logs: lines as text and as JSON, fields with their types, floods held back, levels changed."""

import io
import logging
from collections.abc import Iterator

import orjson
import pytest

from raftmq.ops import logs
from raftmq.ops.logs import WINDOW_S, EventHandler, JsonFormatter

LOG = logging.getLogger("tests.ops.logs")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    result = logging.getLogger()
    handlers, level = list(result.handlers), result.level
    yield result
    result.handlers[:] = handlers
    result.setLevel(level)
    LOG.setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in stream.getvalue().splitlines()]


def test_log_event_has_fields(root: logging.Logger) -> None:
    stream = io.StringIO()
    context: dict[str, object] = {"service": "broker", "node": "n1"}
    logs.set_up("json", "INFO", context, stream)
    context["term"] = lambda: 7
    LOG.warning("role_changed role=%s ready=%s index=%d why=signal", "leader", True, 12)
    (line,) = lines(stream)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "WARNING",
        "logger": "tests.ops.logs",
        "event": "role_changed",
        "service": "broker",
        "node": "n1",
        "term": 7,
        "role": "leader",
        "ready": True,
        "index": 12,
        "why": "signal",
        "message": "role_changed role=leader ready=True index=12 why=signal",
    }


@pytest.mark.parametrize(
    ("template", "arguments", "event", "fields"),
    [
        ("Something else happened", (), "message", {}),
        ("bare", (), "bare", {}),
        ("percent used=%d%% of=%s", (5, "x"), "percent", {"used": 5, "of": "x"}),
        ("no_key %s id=%d: words", (OSError("bad"), 3), "no_key", {"id": 3}),
        ("own level=%s", ("x",), "own", {}),  # may not hide the line's own fields
        ("float s=%.3f", (0.5,), "float", {"s": 0.5}),
    ],
)
def test_log_templates_are_parsed(
    template: str, arguments: tuple[object, ...], event: str, fields: dict[str, object]
) -> None:
    record = logging.LogRecord("l", logging.INFO, "f", 1, template, arguments, None)
    line = orjson.loads(JsonFormatter({}).format(record))
    assert line["event"] == event
    assert line["level"] == "INFO"
    own = ("time", "level", "logger", "event", "message")
    assert {k: v for k, v in line.items() if k not in own} == fields
    assert line["message"] == (template % arguments if arguments else template)


def test_logged_exception_is_one_json_line(root: logging.Logger) -> None:
    stream = io.StringIO()
    logs.set_up("json", "INFO", {}, stream)
    try:
        raise OSError("no room")
    except OSError:
        LOG.exception("chore_failed name=%s", "snapshot")
    (line,) = lines(stream)
    assert "OSError: no room" in str(line["exception"])


def test_log_floods_are_suppressed_and_counted() -> None:
    now_s = 0.0
    stream = io.StringIO()
    handler = EventHandler(stream, lambda: now_s, lines_max=3)
    logger = logging.Logger("flood")
    logger.addHandler(handler)
    for number in range(5):
        logger.warning("peer_unreachable peer=%d", number)
    logger.warning("another %d", 1)  # of another kind: not held back
    assert stream.getvalue().splitlines()[-2:] == ["peer_unreachable peer=2", "another 1"]
    now_s = WINDOW_S
    logger.warning("peer_unreachable peer=%d", 9)
    assert stream.getvalue().splitlines()[-2:] == [
        "log_suppressed of=peer_unreachable lines=2 seconds=10",
        "peer_unreachable peer=9",
    ]


def test_log_kinds_beyond_the_limit_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "TEMPLATES_MAX", 1)
    stream = io.StringIO()
    handler = EventHandler(stream, lambda: 0.0, lines_max=1)
    logger = logging.Logger("kinds")
    logger.addHandler(handler)
    for template in ("a", "b", "b", "a"):
        logger.warning(template)
    assert stream.getvalue().split() == ["a", "b", "b"]


def test_log_levels_change_at_run_time(root: logging.Logger) -> None:
    stream = io.StringIO()
    logs.set_up("text", "INFO", {}, stream)
    LOG.debug("hidden")
    assert logs.levels()["tests.ops.logs"] == "INFO"
    logs.set_level("tests.ops.logs", "debug")
    assert logs.levels()["tests.ops.logs"] == "DEBUG"
    LOG.debug("seen")
    logs.set_level("tests.ops.logs", "")
    LOG.debug("hidden again")
    logs.set_level("root", "ERROR")
    LOG.warning("hidden, too")
    assert [line.split()[-1] for line in stream.getvalue().splitlines()] == ["seen"]
    with pytest.raises(ValueError, match="unknown level 'LOUD'"):
        logs.set_level("root", "LOUD")
    with pytest.raises(KeyError):
        logs.set_level("nobody.has.this", "INFO")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_log_lines_per_peer_are_limited_over_all_kinds(
    root: logging.Logger, log_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    stream = io.StringIO()
    logs.set_up(log_format, "INFO", {}, stream, peer_lines_per_s=2)
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, EventHandler)
    monkeypatch.setattr(handler, "_clock_s", lambda: now_s)
    for number in range(1_000):
        LOG.warning(f"kind_{number} peer=%s", "10.0.0.1:1", extra={"from_peer": True})
    assert len(stream.getvalue().splitlines()) == 20  # ten seconds' worth
    assert logs.suppressed_lines() == 980
    LOG.warning("ours %d", 1)
    assert "ours 1" in stream.getvalue().splitlines()[-1]
    now_s += 1
    for number in range(10):
        LOG.warning("kind peer=%s", number, extra={"from_peer": True})
    lines = stream.getvalue().splitlines()[21:]
    assert len(lines) == 3
    assert "log_suppressed" in lines[0] and "980" in lines[0]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("extra", [None, {"from_peer": True}])
def test_log_text_of_peers_is_truncated_and_stays_on_its_line(
    root: logging.Logger, log_format: str, extra: dict[str, object] | None
) -> None:
    stream = io.StringIO()
    logs.set_up(log_format, "INFO", {}, stream)
    LOG.warning("refused name=%s", "a\r\nFORGED\u2028" + "x" * 100_000, extra=extra)
    try:
        raise ValueError("y\nFORGED\n" + "y" * 100_000)
    except ValueError as error:
        LOG.error("unforeseen error=%r", error, exc_info=error, extra=extra)
    written = stream.getvalue()
    assert not any(line.startswith("FORGED") for line in written.splitlines())
    assert "a\\r\\nFORGED\\u2028xxx" in written.replace("\\\\", "\\")
    assert "...(100010 characters)" in written
    assert len(written) < 8_000
    assert "ValueError: y\\nFORGED" in written.replace("\\\\", "\\")


def raised(depth: int) -> None:
    if depth:
        raised(depth - 1)
    try:
        raise KeyError("first\nFORGED")
    except KeyError as error:
        raise OSError("second") from error


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("name", ["raftmq.web", "grpc._cython.cygrpc", "aiohttp.server", "asyncio"])
def test_traceback_caused_by_a_peer_is_part_of_one_line(
    root: logging.Logger, log_format: str, name: str
) -> None:
    """Also one that a library logs."""
    stream = io.StringIO()
    logs.set_up(log_format, "INFO", {}, stream)
    extra = {"from_peer": True} if name.startswith("raftmq") else None
    for _ in range(200):
        try:
            raised(50)
        except OSError:
            logging.getLogger(name).exception("call_failed call=%s", "Send", extra=extra)
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 22
    assert "OSError: second" in lines[0] and "KeyError:" in lines[0] and "test_logs.py" in lines[0]
    assert len(lines[0]) < 6_000


def test_other_tracebacks_are_logged_unchanged(root: logging.Logger) -> None:
    stream = io.StringIO()
    logs.set_up("text", "INFO", {}, stream)
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise OSError("second") from error
    except OSError:
        LOG.exception("chore_failed name=%s", "snapshot")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("ERROR tests.ops.logs chore_failed name=snapshot")
    assert [line for line in lines[1:] if not line.startswith(" ")] == [
        "Traceback (most recent call last):",
        "KeyError: 'first'",
        "The above exception was the direct cause of the following exception:",
        "Traceback (most recent call last):",
        "OSError: second",
    ]
    assert '    raise OSError("second") from error' in lines
