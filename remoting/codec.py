"""Codec of frames and command headers, sans I/O.

A frame, all integers big-endian:

    off size field
    0   4    length       of all that follows: 4 + header + body
    4   1    header codec 0 JSON, 1 binary ("ROCKETMQ")
    5   3    header size  bytes
    8   h    header
    8+h ...  body

The binary header:

    int16 code | int8 language | int16 version | int32 opaque | int32 flag
    int32 size, remark | int32 size, ext;  ext = repeat (int16 size, key | int32 size, value)

Invariants: at most one unfinished frame is kept, of at most `frame_size_max` bytes and with a
header of at most HEADER_SIZE_BYTES_MAX, checked as soon as the lengths are known. Every byte is
copied at most once between the received buffer and the header or body, except in frames received in
several chunks. Those are collected in one buffer, so a peer that sends byte by byte costs only the
memory that it has sent.

`decode_command` is the only check of a request's form. `code`, `opaque`, `flag` and `version` are
int32 (binary: the codec's width), extFields are strings, at most HEADER_FIELDS_MAX. No later code
parses header bytes, except the fast path of plain sends (broker.send.fast_path), which is stricter.
Pure, without I/O.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import orjson

from .codes import LanguageCode
from .command import BINARY, JSON, RemotingCommand
from .errors import RemotingProtocolError

FRAME_SIZE_BYTES_MAX = 16 * 1024 * 1024  # Apache's default, including the length word
# The longest headers of Apache's clients have 32,767 bytes of properties. As JSON, with six bytes
# per control character, these are 200,000 bytes. This is more than twice that.
HEADER_SIZE_BYTES_MAX = 512 * 1024
HEADER_FIELDS_MAX = 256  # Apache's largest headers have some 25
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1

RawFrame = tuple[int, bytes, bytes]  # (header codec, header, body)

_PREFIX = struct.Struct(">II")  # length, codec << 24 | header size
_BINARY_FIXED = struct.Struct(">hbhii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEADER_SIZE_MASK = 0xFFFFFF  # three bytes of the header word
_CODEC_WORD_MAX = BINARY << 24 | _HEADER_SIZE_MASK
_LANGUAGE_BY_NAME = {language.name: language for language in LanguageCode}
_LANGUAGE_NAME = {int(language): language.name for language in LanguageCode}


class FrameReader:
    """Splits a byte stream into frames. Use `split(data)` per arrival, which returns all finished
    frames and sets `error` on damage; or `receive_data(data)` and then `next_frame()` until None,
    which raises the error. Frames before the damage are returned in both cases, later frames never.
    """

    __slots__ = ("_frame_size_max", "_need", "_ready", "_rest", "error")

    def __init__(self, frame_size_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        assert frame_size_max >= _PREFIX.size
        self._frame_size_max = frame_size_max
        self._rest = bytearray()  # the unfinished frame
        self._need = 0  # bytes that `_rest` needs before the next check
        self._ready: deque[RawFrame] = deque()
        self.error: RemotingProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        return len(self._rest)

    def receive_data(self, data: bytes) -> None:
        self._ready.extend(self.split(data))

    def next_frame(self) -> RawFrame | None:
        """Return the next finished frame, or None. Raises RemotingProtocolError at damage."""
        if self._ready:
            return self._ready.popleft()
        if self.error is not None:
            raise self.error
        return None

    def split(self, data: bytes) -> list[RawFrame]:
        """Return every frame completed by `data`. Sets `error` on damage."""
        if self.error is not None:
            return []
        rest = self._rest
        if rest:
            if len(rest) + len(data) < self._need:
                rest += data
                return []
            data = b"".join((rest, data))
            self._rest = bytearray()
        frames: list[RawFrame] = []
        add = frames.append
        unpack = _PREFIX.unpack_from
        length_max = self._frame_size_max - 4
        position = 0
        end = len(data)
        need = _PREFIX.size
        while end - position >= 8:
            length, word = unpack(data, position)
            header_size = word & _HEADER_SIZE_MASK
            body_start = position + 8 + header_size
            stop = position + 4 + length
            if (
                length > length_max
                or header_size > HEADER_SIZE_BYTES_MAX
                or body_start > stop
                or word > _CODEC_WORD_MAX
            ):
                self.error = self._explain(length, word)
                return frames
            if stop > end:
                need = stop - position
                break
            add((word >> 24, data[position + 8 : body_start], data[body_start:stop]))
            position = stop
        if position < end:
            self._rest += memoryview(data)[position:]
            self._need = need
        return frames

    def drop(self) -> None:
        """Drop the unfinished frame, since the stream is not read any further."""
        self._rest = bytearray()
        self._ready.clear()

    def _explain(self, length: int, word: int) -> RemotingProtocolError:
        if length > self._frame_size_max - 4:
            reason = f"frame of {length + 4} bytes is over the limit of {self._frame_size_max}"
        elif word > _CODEC_WORD_MAX:
            reason = f"unknown header codec {word >> 24}"
        else:
            header_size = word & _HEADER_SIZE_MASK
            reason = f"frame length {length} does not hold its header of {header_size} bytes"
            if header_size > HEADER_SIZE_BYTES_MAX:
                reason = f"header of {header_size} bytes, the limit is {HEADER_SIZE_BYTES_MAX}"
        return RemotingProtocolError(reason)


def join_frame(header: bytes, body: bytes = b"", serialize_type: int = JSON) -> bytes:
    """Build a frame from an encoded header and a body. Raises RemotingProtocolError."""
    size = len(header)
    if size > HEADER_SIZE_BYTES_MAX:
        raise RemotingProtocolError(f"header of {size} bytes does not fit into a frame")
    prefix = _PREFIX.pack(4 + size + len(body), serialize_type << 24 | size)
    return b"".join((prefix, header, body))


def encode_command(command: RemotingCommand, serialize_type: int | None = None) -> bytes:
    """Encode `command` as a frame, by default with its own header codec. Raises
    RemotingProtocolError for values beyond the codec (binary: codes past int16)."""
    if serialize_type is None:
        serialize_type = command.serialize_type
    if serialize_type == JSON:
        return join_frame(_encode_json(command), command.body)
    return join_frame(_encode_binary(command), command.body, BINARY)


def decode_command(raw: RawFrame) -> RemotingCommand:
    """Decode a frame's header. Raises RemotingProtocolError if it is damaged."""
    serialize_type, header, body = raw
    if serialize_type == JSON:
        return _decode_json(header, body)
    return _decode_binary(header, body)


def _encode_json(command: RemotingCommand) -> bytes:
    fields: dict[str, Any] = {"code": int(command.code)}
    if command.ext is not None:
        fields["extFields"] = command.ext
    fields["flag"] = command.flag
    fields["language"] = _LANGUAGE_NAME.get(command.language, "OTHER")
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError as error:
        raise RemotingProtocolError(f"header cannot be written as JSON: {error}") from error


def _decode_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise RemotingProtocolError(f"header is not JSON: {error}") from error
    if type(fields) is not dict:
        raise RemotingProtocolError("header is not a JSON object")
    get = fields.get
    code: Any = get("code")
    opaque = get("opaque", 0)
    flag = get("flag", 0)
    version = get("version", 0)
    for number in (code, opaque, flag, version):
        if type(number) is not int or not INT32_MIN <= number <= INT32_MAX:
            raise RemotingProtocolError("code, opaque, flag or version is not an int32")
    ext = get("extFields")
    if ext is not None:
        if type(ext) is not dict:
            raise RemotingProtocolError("extFields is not an object")
        if len(ext) > HEADER_FIELDS_MAX:
            raise _too_many(len(ext))
        for value in ext.values():
            if type(value) is not str:
                ext = {key: _as_text(value) for key, value in ext.items() if value is not None}
                break
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        raise RemotingProtocolError("remark is not a string")
    name = get("language")
    language = LanguageCode.OTHER
    if type(name) is str:  # otherwise ignored, since it is only shown to operators
        language = _LANGUAGE_BY_NAME.get(name, LanguageCode.OTHER)
    return RemotingCommand(code, opaque, flag, remark, ext, body, language, version, JSON)


def _too_many(count: int) -> RemotingProtocolError:
    return RemotingProtocolError(f"{count} extFields or more, the limit is {HEADER_FIELDS_MAX}")


def _as_text(value: Any) -> str:
    """Convert a value that a client wrote as a JSON number or boolean instead of a string."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) in (int, float, str):
        return str(value)
    raise RemotingProtocolError("extFields holds a value that is not a string")


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    try:
        for key, value in (command.ext or {}).items():
            name, content = key.encode(), value.encode()
            parts += (_INT16.pack(len(name)), name, _INT32.pack(len(content)), content)
        ext = b"".join(parts)
        fixed = _BINARY_FIXED.pack(
            command.code, command.language, command.version, command.opaque, command.flag
        )
    except struct.error as error:
        raise RemotingProtocolError(f"the binary header cannot carry this: {error}") from error
    return b"".join((fixed, _INT32.pack(len(remark)), remark, _INT32.pack(len(ext)), ext))


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header)
        remark, position = _sized(header, _BINARY_FIXED.size, _INT32)
        ext_bytes, position = _sized(header, position, _INT32)
        if position != len(header):
            raise RemotingProtocolError("bytes left over behind the binary header")
        ext = _decode_ext(ext_bytes) if ext_bytes else None
        text = remark.decode() if remark else None
    except (struct.error, UnicodeDecodeError) as error:
        raise RemotingProtocolError(f"binary header is damaged: {error}") from error
    who = LanguageCode(language) if language in _LANGUAGE_NAME else LanguageCode.OTHER
    return RemotingCommand(code, opaque, flag, text, ext, body, who, version, BINARY)


def _decode_ext(data: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    position = count = 0
    while position < len(data):
        count += 1
        if count > HEADER_FIELDS_MAX:
            raise _too_many(count)
        key, position = _sized(data, position, _INT16)
        value, position = _sized(data, position, _INT32)
        if value:  # an empty value means null, and null fields are absent
            ext[key.decode()] = value.decode()
    return ext


def _sized(data: bytes, position: int, size_word: struct.Struct) -> tuple[bytes, int]:
    (size,) = size_word.unpack_from(data, position)
    start = position + size_word.size
    stop = start + size
    if size < 0 or stop > len(data):
        raise RemotingProtocolError("a size in the binary header points outside of it")
    return data[start:stop], stop
