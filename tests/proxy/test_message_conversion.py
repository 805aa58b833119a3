"""Messages as clients are told them."""

import pytest

from raftmq.proxy.endpoints import Receipt
from raftmq.proxy.message_conversion import INT32_MAX, TIME_MS_MAX, TIME_MS_MIN, inbound
from raftmq.remoting.pop_headers import Handle
from raftmq.store.record import MessageRecord

RECEIPT = Receipt(Handle(0, 1, 2, 0, False, "b", 0, 0), 0)


def record(born_ms=1, stored_ms=2, times=0, properties=""):
    here = ("127.0.0.1", 1)
    return MessageRecord(
        "T", b"x", properties.encode(), 0, 0, 0, 0, 0, born_ms, here, stored_ms, here, times, 0
    )


@pytest.mark.parametrize(
    "given, told",
    [
        (0, 0),
        (-1, -1),
        (TIME_MS_MAX, TIME_MS_MAX),
        (TIME_MS_MAX + 1, TIME_MS_MAX),
        ((1 << 63) - 1, TIME_MS_MAX),
        (TIME_MS_MIN - 1, TIME_MS_MIN),
        (-(1 << 63), TIME_MS_MIN),
    ],
)
def test_time_out_of_range_is_converted_to_the_nearest(given, told):
    system = inbound(record(given, given), "T", "", RECEIPT, times=0).system_properties
    assert system.born_timestamp.ToMilliseconds() == told
    assert system.store_timestamp.ToMilliseconds() == told


@pytest.mark.parametrize(
    "given, told", [("7", 7), (str(INT32_MAX + 1), INT32_MAX), ("9" * 5_000, INT32_MAX)]
)
def test_number_out_of_range_is_converted_to_the_nearest(given, told):
    properties = f"_SYS_MSG_PRIORITY_\x01{given}\x02TIMER_DELIVER_MS\x01{given}\x02"
    properties += f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{given}\x02"
    message = inbound(
        record(properties=properties), "T", "", RECEIPT, times=INT32_MAX, invisible_ms=1 << 40
    )
    assert message.system_properties.delivery_attempt == INT32_MAX
    assert message.system_properties.priority == told
    assert message.SerializeToString()
