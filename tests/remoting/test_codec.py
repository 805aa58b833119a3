"""Frames and headers: recorded ones, cut ones, damaged ones, and each limit."""

import struct

import orjson
import pytest

from raftmq.remoting.codec import (
    HEADER_FIELDS_MAX,
    HEADER_SIZE_BYTES_MAX,
    FrameReader,
    decode_command,
    encode_command,
    join_frame,
)
from raftmq.remoting.codes import LanguageCode
from raftmq.remoting.command import BINARY, JSON, RemotingCommand
from raftmq.remoting.errors import RemotingProtocolError
from tests.remoting import recorded

BODY = bytes(range(256))


def stream() -> tuple[bytes, list[tuple[int, bytes, bytes]]]:
    """Frames of all kinds in one stream, and what they are."""
    frames = [(JSON, header, b"") for header in recorded.ALL_HEADERS.values()]
    frames.append((JSON, recorded.SEND_REQUEST, BODY * 300))  # longer than most reads
    frames.append((JSON, recorded.ROUTE_RESPONSE, recorded.ROUTE_BODY))
    data = b"".join(join_frame(header, body) for _, header, body in frames)
    binary = recorded.BINARY_FRAME
    frames.append((BINARY, binary[8:], b""))
    return data + binary, frames


@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 9, 100, 1460, 4096, 1 << 20])
def test_frames_are_read_equally_for_any_piece_size(step: int) -> None:
    data, expected = stream()
    reader = FrameReader()
    result = []
    for start in range(0, len(data), step):
        result += reader.split(data[start : start + step])
    assert result == expected
    assert reader.buffered_bytes == 0


def test_frame_is_returned_with_its_last_byte() -> None:
    data = join_frame(recorded.SEND_REQUEST, BODY)
    reader = FrameReader()
    for byte in data[:-1]:
        reader.receive_data(bytes((byte,)))
        assert reader.next_frame() is None
    reader.receive_data(data[-1:])
    assert reader.next_frame() == (JSON, recorded.SEND_REQUEST, BODY)
    assert reader.next_frame() is None


def test_next_frame_returns_frames_before_damage_and_then_raises() -> None:
    good = join_frame(b"{}", b"x")
    reader = FrameReader(100)
    reader.receive_data(good + b"\xff" * 8 + good)
    assert reader.next_frame() == (JSON, b"{}", b"x")
    for _ in range(2):
        with pytest.raises(RemotingProtocolError):
            reader.next_frame()
    reader.receive_data(good)
    with pytest.raises(RemotingProtocolError):
        reader.next_frame()


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (b"\x00\x00\x03\xe5\x00\x00\x00\x02", "over the limit"),  # 997 + 4 > 1000
        (b"\x80\x00\x00\x00\x00\x00\x00\x00", "over the limit"),  # negative for Java
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "over the limit"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "over the limit"),  # a TLS hello
        (b"GET / HTTP/1.1\r\n", "over the limit"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "does not hold its header"),
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", "does not hold its header"),
        (b"\x00\x00\x00\x10\x00\x00\x00\x0d", "does not hold its header"),
        (b"\x00\x00\x00\x10\x02\x00\x00\x00", "unknown header codec 2"),
        (b"\x00\x00\x00\x10\xff\x00\x00\x00", "unknown header codec 255"),
    ],
)
def test_malformed_frame_prefix_is_detected_at_once(prefix: bytes, reason: str) -> None:
    reader = FrameReader(1000)
    assert reader.split(prefix[:7]) == []
    assert reader.error is None
    assert reader.split(prefix[7:]) == []
    assert reason in str(reader.error)


def test_largest_frame_is_accepted_and_a_larger_one_rejected() -> None:
    complete = join_frame(b"{}", b"b" * (1000 - 10))
    assert len(complete) == 1000
    reader = FrameReader(1000)
    assert len(reader.split(complete)) == 1
    assert reader.error is None
    reader.split(join_frame(b"{}", b"b" * (1000 - 9)))
    assert reader.error is not None


def test_frame_reader_buffers_at_most_one_frame() -> None:
    reader = FrameReader(1000)
    reader.split(join_frame(b"{}", b"b" * 990)[:-1])
    assert reader.buffered_bytes == 999


@pytest.mark.parametrize("name", recorded.ALL_HEADERS)
@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_recorded_headers_survive_both_codecs(name: str, serialize_type: int) -> None:
    command = decode_command((JSON, recorded.ALL_HEADERS[name], b"body"))
    fields = orjson.loads(recorded.ALL_HEADERS[name])
    assert command.language is LanguageCode.JAVA
    assert (command.code, command.opaque, command.flag, command.version) == tuple(
        fields[key] for key in ("code", "opaque", "flag", "version")
    )
    assert command.ext == fields.get("extFields")
    assert command.remark == fields.get("remark")
    (frame,) = FrameReader().split(encode_command(command, serialize_type))
    again = decode_command(frame)
    assert again.serialize_type == serialize_type
    if serialize_type == BINARY and command.ext:  # where empty means null, and null absent
        command.ext = {key: value for key, value in command.ext.items() if value}
    assert again == command


def test_json_header_is_written_as_by_java() -> None:
    command = decode_command((JSON, recorded.PULL_NOT_FOUND, b""))
    (frame,) = FrameReader().split(encode_command(command))
    assert orjson.loads(frame[1]) == orjson.loads(recorded.PULL_NOT_FOUND)


def test_binary_header_test_vector_in_both_directions() -> None:
    (frame,) = FrameReader().split(recorded.BINARY_FRAME)
    command = decode_command(frame)
    expected = RemotingCommand(105, 7, ext={"topic": "T"}, version=401)
    assert command == expected
    assert encode_command(expected, BINARY) == recorded.BINARY_FRAME


def test_json_prefix_test_vector() -> None:
    assert join_frame(b"h" * 125)[:8].hex() == "000000810000007d"


@pytest.mark.parametrize("cut", range(len(recorded.BINARY_FRAME) - 8))
def test_truncated_binary_header_is_rejected(cut: int) -> None:
    with pytest.raises(RemotingProtocolError):
        decode_command((BINARY, recorded.BINARY_FRAME[8 : 8 + cut], b""))


@pytest.mark.parametrize("position", range(13, 33))
def test_wrong_size_in_a_binary_header_is_rejected(position: int) -> None:
    header = bytearray(recorded.BINARY_FRAME[8:])
    header[position] = 0xFF
    try:
        decode_command((BINARY, bytes(header), b""))
    except RemotingProtocolError:
        return
    assert position >= 23  # only text may have become other text


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"opaque":1}',
        b'{"code":"10"}',
        b'{"code":true}',
        b'{"code":1.5}',
        b'{"code":1,"opaque":4294967296}',
        b'{"code":1,"opaque":"1"}',
        b'{"code":1,"flag":null}',
        b'{"code":1,"version":[]}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"remark":5}',
        b'{"code":1,"remark":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_malformed_json_headers_are_rejected(header: bytes) -> None:
    with pytest.raises(RemotingProtocolError):
        decode_command((JSON, header, b""))


def test_json_header_is_read_with_tolerance() -> None:
    header = (
        b'{"code":310,"language":"ZIG","unknown":[1],"extFields":{"e":1,"k":false,"n":null,"m":true,'
        b'"d":1.5,"a":"x"}}'
    )
    command = decode_command((JSON, header, b""))
    assert command.language is LanguageCode.OTHER
    assert command.opaque == 0
    assert command.ext == {"e": "1", "k": "false", "m": "true", "d": "1.5", "a": "x"}


def test_binary_header_rejects_pop_codes() -> None:
    with pytest.raises(RemotingProtocolError):
        encode_command(RemotingCommand.request(200_050), BINARY)
    assert encode_command(RemotingCommand.request(200_050), JSON)
    with pytest.raises(RemotingProtocolError):
        encode_command(RemotingCommand.request(10, {"k" * 40_000: "v"}), BINARY)


def test_unknown_language_byte_is_read_as_other() -> None:
    header = struct.pack(">hbhii", 1, 99, 1, 1, 0) + bytes(8)
    assert decode_command((BINARY, header, b"")).language is LanguageCode.OTHER


def test_header_above_24_bits_is_rejected() -> None:
    with pytest.raises(RemotingProtocolError):
        join_frame(bytes(1 << 24))


def test_response_uses_the_codec_of_its_request() -> None:
    (frame,) = FrameReader().split(recorded.BINARY_FRAME)
    response = RemotingCommand.response_to(decode_command(frame), 17, "none")
    (answer,) = FrameReader().split(encode_command(response))
    assert answer[0] == BINARY
    command = decode_command(answer)
    assert (command.code, command.opaque, command.remark) == (17, 7, "none")
    assert command.is_response
    assert not command.is_oneway


def raw_header(header: bytes, codec: int = JSON, body: bytes = b"") -> bytes:
    size = len(header)
    return struct.pack(">II", 4 + size + len(body), codec << 24 | size) + header + body


def test_header_above_its_limit_is_rejected_at_its_first_eight_bytes() -> None:
    """However much of it is to come: nothing is kept, and nothing is parsed."""
    for size in (HEADER_SIZE_BYTES_MAX + 1, 13 << 20):
        reader = FrameReader()
        assert reader.split(raw_header(bytes(size))[:8]) == []
        assert reader.error is not None and str(size) in str(reader.error)
        assert reader.buffered_bytes == 0
    reader = FrameReader()
    assert len(reader.split(raw_header(bytes(HEADER_SIZE_BYTES_MAX)))) == 1


def test_longest_properties_of_a_java_client_fit_into_a_header() -> None:
    properties = "\x01" * 32_767  # six bytes each in JSON
    command = RemotingCommand(310, 1, ext={"i": properties, "b": "T" * 127, "a": "G" * 255})
    (frame,) = FrameReader().split(encode_command(command))
    assert decode_command(frame) == command


@pytest.mark.parametrize("codec", [JSON, BINARY])
def test_header_fields_are_limited(codec: int) -> None:
    fields = {f"f{number}": "v" for number in range(HEADER_FIELDS_MAX)}
    (frame,) = FrameReader().split(encode_command(RemotingCommand(11, 1, ext=fields), codec))
    assert decode_command(frame).ext == fields
    fields["one"] = "more"
    (frame,) = FrameReader().split(encode_command(RemotingCommand(11, 1, ext=fields), codec))
    with pytest.raises(RemotingProtocolError, match="extFields"):
        decode_command(frame)


NOT_INT32 = ["null", "true", "1.0", "1e2", "[]", "{}", '"7"', "2147483648", "-2147483649"]
NOT_INT32 += [str((1 << 63) - 1), str(1 << 64), str(1 << 70), "[" * 900 + "]" * 900]


@pytest.mark.parametrize("text", NOT_INT32)
@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_header_numbers_are_int32(name: str, text: str) -> None:
    numbers = {"code": "1", "opaque": "2", "flag": "0", "version": "3"} | {name: text}
    header = ",".join(f'"{key}":{value}' for key, value in numbers.items())
    with pytest.raises(RemotingProtocolError):
        decode_command((JSON, f"{{{header}}}".encode(), b""))


def test_deeply_nested_header_is_rejected_or_ignored() -> None:
    for depth in (500, 2_000, 60_000):
        for header in (
            b'{"code":1,"x":' + b"[" * depth + b"]" * depth + b"}",
            b'{"code":1,"extFields":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
        ):
            try:
                decoded = decode_command((JSON, header, b""))
            except RemotingProtocolError:
                continue
            assert decoded.ext is None  # an unknown name's value, which nobody looks at
