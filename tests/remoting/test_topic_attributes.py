"""Topic attributes: what may be changed to what, and which kind a message is of."""

import pytest

from raftmq.remoting.topic_attributes import (
    CHANGES_MAX,
    MESSAGE_TYPES,
    AttributesRefused,
    changed,
    parse_changes,
    type_of,
    type_problem,
)

FIFO = {"message.type": "FIFO"}


def test_topic_attribute_changes_are_parsed() -> None:
    assert parse_changes("") == {}
    assert parse_changes("+message.type=FIFO,-reserve.time") == {
        "+message.type": "FIFO",
        "-reserve.time": "",
    }
    for text in ("message.type=FIFO", "+message.type", "+message.type=", "-a=b", "+a=b,+a=c"):
        with pytest.raises(AttributesRefused):
            parse_changes(text)


@pytest.mark.parametrize(
    ("current", "changes", "after"),
    [
        (None, {}, {}),
        (None, {"+message.type": "FIFO"}, FIFO),
        (None, {"+queue.type": "SimpleCQ"}, {"queue.type": "SimpleCQ"}),
        ({"queue.type": "BatchCQ"}, {"+queue.type": "BatchCQ"}, {"queue.type": "BatchCQ"}),
        ({}, {"+message.type": "FIFO"}, FIFO),
        (FIFO, {}, FIFO),
        (FIFO, {"+message.type": "DELAY"}, {"message.type": "DELAY"}),
        (FIFO, {"-message.type": ""}, {}),
        ({"of.later": "x"}, {"+message.type": "FIFO"}, FIFO | {"of.later": "x"}),
    ],
)
def test_topic_attribute_changes_are_applied(
    current: dict[str, str] | None, changes: dict[str, str], after: dict[str, str]
) -> None:
    assert changed(current, changes) == after


@pytest.mark.parametrize(
    ("current", "changes", "why"),
    [
        (None, {"-message.type": ""}, "only add attribute"),
        ({}, {"-message.type": ""}, "nonexistent key"),
        ({}, {"+color": "red"}, "unsupported key: color"),
        ({"color": "red"}, {"-color": ""}, "unsupported key: color"),
        ({}, {"+message.type": "fifo"}, "not in set"),
        (None, {"+queue.type": "RocksDBCQ"}, "not in set"),
        ({}, {"+queue.type": "SimpleCQ"}, "unchangeable"),
        ({"queue.type": "SimpleCQ"}, {"+queue.type": "BatchCQ"}, "unchangeable"),
        ({"queue.type": "SimpleCQ"}, {"-queue.type": ""}, "unchangeable"),
        ({}, {"message.type": "FIFO"}, "format wrong"),
        ({}, {"++message.type": "FIFO"}, "format wrong"),
        ({}, {"+": "FIFO"}, "format wrong"),
        (FIFO, {"+message.type": "DELAY", "-message.type": ""}, "duplication"),
        ({}, {f"+{number}": "x" for number in range(CHANGES_MAX + 1)}, "at once"),
    ],
)
def test_invalid_topic_attribute_change_is_rejected(
    current: dict[str, str] | None, changes: dict[str, str], why: str
) -> None:
    with pytest.raises(AttributesRefused, match=why):
        changed(current, changes)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"TAGS": "a", "TRAN_MSG": "false"}, "NORMAL"),
        ({"__SHARDINGKEY": "k"}, "FIFO"),
        ({"DELAY": "3", "__SHARDINGKEY": "k"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1"}, "DELAY"),
        ({"TIMER_DELAY_MS": "1"}, "DELAY"),
        ({"TRAN_MSG": "true", "DELAY": "1"}, "TRANSACTION"),
        ({"_SYS_MSG_PRIORITY_": "1"}, "PRIORITY"),
    ],
)
def test_message_type_of_a_send(properties: dict[str, str], kind: str) -> None:
    assert type_of(properties) == kind
    assert type_problem(kind, kind) == type_problem("MIXED", kind) == ""
    for other in set(MESSAGE_TYPES) - {kind, "MIXED"}:
        assert f"expected type is {other}, but actual type is {kind}" in type_problem(other, kind)
    assert type_problem("UNSPECIFIED", kind)
