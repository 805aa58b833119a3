"""Responses to stored sends, in all forms."""

import pytest

from raftmq.broker.send.responses import AnswerFormat
from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.remoting.headers import SendResponseHeader
from raftmq.store.record import decode_offset_message_id, pack_host
from tests.present import present

STORE = ("127.0.0.1", 10911)


@pytest.mark.parametrize("key", ["ABC123", "", 'quo"te\\', "键"])
def test_send_answers_decode(key):
    answers = AnswerFormat(True, pack_host(STORE))
    data = answers.success(-5, f"{answers.host}{1024:016X},{answers.host}{2048:016X}", 3, 99, key)
    reader = FrameReader()
    reader.receive_data(data)
    command = decode_command(present(reader.next_frame()))
    assert reader.next_frame() is None
    assert (command.code, command.opaque, command.flag) == (0, -5, 1)
    header = SendResponseHeader.parse(command.ext)
    assert (header.queue_id, header.queue_offset) == (3, 99)
    assert header.transaction_id == (key or None)
    assert (header.region, header.trace_on) == ("DefaultRegion", True)
    first, second = header.message_id.split(",")
    assert first == "7F00000100002A9F0000000000000400"
    assert decode_offset_message_id(second) == (STORE, 2048)


@pytest.mark.parametrize("key", ["ABC123", "", 'quo"te\\', "键", "k" * 3000])
@pytest.mark.parametrize("code", [0, 11])
def test_plain_send_answer_equals_the_general_answer(key, code):
    answers = AnswerFormat(False, pack_host(STORE), code)
    for opaque, position, queue_id, offset in ((-5, 0, 0, 0), (1 << 30, 1 << 40, 1023, 1 << 50)):
        ids = f"{answers.host}{position:016X}"
        usual = answers.success(opaque, ids, queue_id, offset, key)
        assert answers.plain(opaque, position, queue_id, offset, key) == usual
