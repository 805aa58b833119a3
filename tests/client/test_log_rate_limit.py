"""What is logged of a listener's mistakes: whose, of which message, and how often."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from raftmq.client.consumer.push_consumer import PushConsumer
from raftmq.client.log_rate_limit import KINDS_MAX, PAUSE_S, ListenerLog
from raftmq.client.message import ConsumeResult, MessageExt
from tests.client.consumer.test_push_consumer import QUICK, fill
from tests.client.fakes import FakeCluster
from tests.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def message(offset: int) -> MessageExt:
    properties = f"UNIQ_KEY\x01ID{offset}\x02".encode()
    return MessageExt(
        "orders", b"", properties, "g0", 3, offset, 0, 0, 0, 0, b"", 0, b"", 0, 0, 0
    )  # fmt: skip


def failing(text: str) -> Exception:
    try:
        json.loads(text)
    except ValueError as error:
        return error
    raise AssertionError


def missing_key() -> Exception:
    order: dict[str, int] = {}
    try:
        order["amount"] += 1
    except KeyError as error:
        return error
    raise AssertionError


def test_listener_log_names_group_topic_and_message_with_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ListenerLog("billing").raised(failing("nonsense"), [message(7), message(8)])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "listener_raised group=billing topic=orders broker=g0 queue=3 offset=7 message=ID7 "
        "count=2 left_out=0"
    )
    assert "JSONDecodeError" in caplog.text and "in failing" in caplog.text


def test_listener_log_limits_each_kind_to_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = ListenerLog("billing", clock)
    for offset in range(5):
        log.raised(failing("nonsense"), [message(offset)])
        log.raised(missing_key(), [message(offset)])  # another kind
    assert [r.getMessage().split()[-3:] for r in caplog.records] == [
        ["message=ID0", "count=1", "left_out=0"]
    ] * 2
    caplog.clear()
    clock.now_s += PAUSE_S - 1
    log.raised(failing("nonsense"), [message(5)])
    assert not caplog.records
    clock.now_s += 1
    log.raised(failing("nonsense"), [message(6)])
    assert [r.getMessage().split()[-3:] for r in caplog.records] == [
        ["message=ID6", "count=1", "left_out=5"]
    ]


def test_listener_log_kinds_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    log = ListenerLog("billing", Clock())
    kinds = [type(f"Answer{number}", (), {}) for number in range(KINDS_MAX + 1)]
    for kind in (*kinds, kinds[0], kinds[-1]):  # the first was forgotten, the last was not
        log.returned_nonsense(kind(), [message(1)])
    assert len(caplog.records) == KINDS_MAX + 2


async def test_many_listener_failures_log_one_line_and_redeliver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[bytes] = []
    failures = 30

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("the user's listener is broken today")
        seen.extend(m.body for m in messages)
        return ConsumeResult.SUCCESS

    config = replace(QUICK, failure=replace(QUICK.failure, send_back=False))
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8)
        consumer = PushConsumer("g", cluster.namesrv, listen, config=config)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: len(set(seen)) == 8)
    lines = [r.getMessage() for r in caplog.records if "listener_raised" in r.getMessage()]
    assert len(lines) == 1
    assert "group=g topic=T broker=g0" in lines[0]
