"""The formats' test vectors (protocol sheet, section 14), confirmed by the official Java client.

Each vector is computed by Java's own classes and by ours and compared with the sheet.
"""

import pytest

from raftmq.remoting.codec import FrameReader, decode_command, encode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.store.properties import java_string_hash, tags_code
from raftmq.store.record import decode_record, encode_record, offset_message_id
from tests.interop.jvm import Jvm
from tests.store.make import PLAIN

RECORD_HEX = (
    "00000068daa320a758932aac000000000000000000000000000000000000000000000000000000000000018bcf"
    "e568007f0000010000c3500000018bcfe568017f00000100002a9f000000000000000000000000000000026869"
    "0154000a54414753015461674102"
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order_created", 848461559),
        ("标签", 857175),
        ("", 0),
        ("polygenelubricants", -2147483648),
        ("TopicTest#KEY1", -1656969516),
        ("emoji 😀", None),  # outside the basic plane: Java hashes UTF-16 units
        ("long 😀 text of several hundred units " * 20, None),
    ],
)
def test_hash_code_equals_javas(jvm: Jvm, text: str, code: int | None) -> None:
    java = jvm.gateway.jvm.java.util.Objects.hashCode(text)
    assert java_string_hash(text) == java
    assert tags_code(text.encode()) == java
    if code is not None:
        assert java == code


def test_java_client_decodes_our_record(jvm: Jvm) -> None:
    data = encode_record(PLAIN)
    assert data.hex() == RECORD_HEX
    assert decode_record(data, 0) == PLAIN
    buffer = jvm.gateway.jvm.java.nio.ByteBuffer.wrap(data)
    decoded = jvm.rocketmq.common.message.MessageDecoder.decode(buffer)
    assert decoded.getTopic() == "T"
    assert bytes(decoded.getBody()) == b"hi"
    assert decoded.getTags() == "TagA"
    assert decoded.getBodyCRC() & 0xFFFFFFFF == int(RECORD_HEX[16:24], 16)
    assert decoded.getStoreSize() == 104


def test_offset_message_id_equals_javas(jvm: Jvm) -> None:
    ours = offset_message_id(("127.0.0.1", 10911), 1024)
    assert ours == "7F00000100002A9F0000000000000400"
    decoded = jvm.rocketmq.common.message.MessageDecoder.decodeMessageId(ours)
    assert decoded.getOffset() == 1024


def test_body_crc_equals_javas(jvm: Jvm) -> None:
    assert jvm.rocketmq.common.UtilAll.crc32(b"hello") == 907060870


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_command_frames_round_trip_between_java_and_ours(jvm: Jvm, serialize_type: int) -> None:
    ours = RemotingCommand.request(105, {"topic": "T"}, b"body")
    ours.opaque = 7
    encoded = encode_command(ours, serialize_type)
    wrapped = jvm.gateway.jvm.java.nio.ByteBuffer.wrap(encoded[4:])
    protocol = jvm.rocketmq.remoting.protocol
    theirs = protocol.RemotingCommand.decode(wrapped)
    assert theirs.getCode() == 105
    assert theirs.getOpaque() == 7
    assert dict(theirs.getExtFields()) == {"topic": "T"}
    assert bytes(theirs.getBody()) == b"body"

    kinds = protocol.SerializeType
    theirs.setSerializeTypeCurrentRPC([kinds.JSON, kinds.ROCKETMQ][serialize_type])
    theirs.setRemark("why")
    reader = FrameReader(1 << 20)
    reader.receive_data(bytes(theirs.encode().array()))
    raw = reader.next_frame()
    assert raw is not None
    command = decode_command(raw)
    assert (command.code, command.opaque, command.remark) == (105, 7, "why")
    assert command.ext is not None
    assert command.ext["topic"] == "T"
    assert bytes(command.body) == b"body"
