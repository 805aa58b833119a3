"""Remoting frames that no client would send, made of recorded ones and of all codes. Pure.

A frame is taken apart into its header's fields and its body, some of these are changed, and it is
put together again in either header codec; or its bytes are changed. What is put together by this
module can be wrong in every way, so it does not use the product's encoder.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from raftmq.broker.tables.topics import QUEUE_COUNT_MAX
from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.remoting.codes import RequestCode
from tests.fuzz.samples import Sample
from tests.fuzz.values import (
    EDGES,
    GROUPS,
    TOPICS,
    damaged,
    field_names,
    nested,
    odd,
    odd_number,
    odd_text,
    plausible,
)

# Kept out: they do what they say, to the whole broker, and that is no damage.
ADMINISTRATION = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.TRANSFER_LEADERSHIP,
        RequestCode.CHANGE_MEMBERS,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.BACKUP,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
    }
)
# What clients send all day takes the ways that were made quick.
QUEUES_MAX = 64
BUSY = frozenset({310, 320, 11, 34, 36, 37, 15, 103, 105})
_PREFIX = struct.Struct(">II")
_FIXED = struct.Struct(">HBHII")
_LANGUAGES = ("JAVA", "CPP", "PYTHON", "GO", "OTHER")
BODIES: tuple[object, ...] = (
    {"clientID": "c", "producerDataSet": [{"groupName": "fuzz"}], "consumerDataSet": []},
    {"clientID": "c", "consumerDataSet": [{"groupName": "fuzz", "consumeType": "X",
     "subscriptionDataSet": [{"topic": "Fuzzed", "subString": "a||b", "subVersion": 1,
                              "tagsSet": ["a"], "codeSet": [97]}]}]},
    {"clientId": "c", "consumerGroup": "fuzz",
     "mqSet": [{"topic": "Fuzzed", "brokerName": "raft3", "queueId": 0}]},
    {"clientId": "c", "group": "fuzz", "subscriptionData": {"topic": "Fuzzed", "subString": "a >",
                                                            "expressionType": "SQL92"}},
    {"groupName": "fuzz2", "retryMaxTimes": 3, "consumeEnable": True},
    {"queueDatas": [{"brokerName": "fuzzed-broker", "readQueueNums": 1, "writeQueueNums": 1,
                     "perm": 6}]},
    {"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1, "timestamp": 1},
                                     "topicConfigTable": {"Fuzzed": {}}}},
    {"counter": 1, "stateVersion": 0, "timestamp": 5},
    [], [1, 2], {}, None, 7, "text", {"a": {"b": [{"c": None}] * 50}},
)  # fmt: skip


@dataclass(slots=True)
class Parts:
    """A frame taken apart; every field of `header` and `ext` may be of any type."""

    header: dict[str, Any]
    ext: dict[str, Any]
    body: bytes


class FrameMaker:
    """Frames for one server, whose clients said `samples`."""

    def __init__(self, rng: random.Random, samples: Sequence[Sample], codes: Sequence[int]) -> None:
        self.rng = rng
        parts = [take_apart(s.data) for s in samples]
        self._recorded = [p for p in parts if p and p.header["code"] not in ADMINISTRATION]
        self._busy = [p for p in self._recorded if p.header["code"] in BUSY]
        self._codes = [code for code in codes if code not in ADMINISTRATION]
        self._made_up = {n: plausible(n, kind, rng) for n, kind in field_names().items()}

    def frame(self) -> bytes:
        """The next one."""
        rng = self.rng
        parts = self._base()
        for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
            self._change(parts)
        _tame(parts)
        data = put_together(parts, rng)
        return _misframed(data, rng) if rng.random() < 0.02 else data

    def _base(self) -> Parts:
        rng = self.rng
        if self._recorded and rng.random() < 0.6:
            parts = rng.choice(self._busy if rng.random() < 0.6 else self._recorded)
            made = Parts(dict(parts.header), dict(parts.ext), parts.body)
            if rng.random() < 0.1:
                made.header["code"] = rng.choice(self._codes)
            return made
        code = rng.choice(self._codes) if rng.random() < 0.95 else rng.randrange(-5, 40_000)
        header = {"code": code, "flag": 0, "language": rng.choice(_LANGUAGES),
                  "opaque": rng.randrange(1 << 20), "version": rng.choice((0, 300, 409, 465)),
                  "serializeTypeCurrentRPC": "JSON"}  # fmt: skip
        return Parts(header, dict(self._made_up), self._body())

    def _body(self) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return orjson.dumps(rng.choice(BODIES))
        if kind < 0.7:
            return rng.randbytes(rng.randrange(1, 200))
        return batch(rng) if kind < 0.85 else b""

    def _change(self, parts: Parts) -> None:
        rng = self.rng
        kind = rng.random()
        header, ext = parts.header, parts.ext
        if kind < 0.15:
            name = rng.choice(("code", "flag", "opaque", "opaque", "version", "language", "remark",
                               "serializeTypeCurrentRPC", "extFields"))  # fmt: skip
            # Mostly of the type it has: another one ends most connections.
            header[name] = odd_number(rng) if rng.random() < 0.5 else odd(rng)
        elif kind < 0.20:
            header["flag"] = rng.choice((0, 1, 2, 3, 4, -1, 2**31 - 1))
        elif kind < 0.55 and ext:
            name = rng.choice(list(ext))
            ext[name] = odd_text(rng) if rng.random() < 0.7 else odd(rng)
        elif kind < 0.65 and ext:
            name = rng.choice(list(ext))
            value = ext[name]
            if type(value) is str and value.lstrip("-").isdigit():
                ext[name] = str(odd_number(rng))
            else:
                ext[name] = rng.choice((*TOPICS, *GROUPS, *self._made_up.values()))
        elif kind < 0.72 and ext:
            del ext[rng.choice(list(ext))]
        elif kind < 0.76:
            ext[rng.choice(list(self._made_up))] = odd_text(rng)
        elif kind < 0.77:
            ext.update((f"k{n}", "v") for n in range(rng.choice((10, 100, 1_000))))
        else:
            parts.body = changed_body(parts.body, rng)


def _tame(parts: Parts) -> None:
    """Topics get few queues: 65,536 are allowed, and make every answer about them large."""
    for name in ("d", "defaultTopicQueueNums", "readQueueNums", "writeQueueNums"):
        value = str(parts.ext.get(name, ""))
        if value.isascii() and value.isdigit() and QUEUES_MAX < int(value) <= QUEUE_COUNT_MAX:
            parts.ext[name] = str(QUEUES_MAX)


def take_apart(data: bytes) -> Parts | None:
    """The first frame in `data`, if it is one."""
    frames = FrameReader().split(data)
    if not frames:
        return None
    command = decode_command(frames[0])
    header = {"code": command.code, "flag": command.flag, "language": "PYTHON",
              "opaque": command.opaque, "version": command.version,
              "serializeTypeCurrentRPC": "JSON"}  # fmt: skip
    if command.remark is not None:
        header["remark"] = command.remark
    return Parts(header, dict(command.ext or {}), command.body)


def put_together(parts: Parts, rng: random.Random) -> bytes:
    """A frame in either header codec."""
    if rng.random() < 0.75:
        header, codec = _json(parts, rng), 0
    else:
        header, codec = _binary(parts), 1
    return join(header, parts.body, codec)


def join(header: bytes, body: bytes, codec: int = 0) -> bytes:
    """The frame around a header and a body, right whatever they are."""
    size = len(header)
    return _PREFIX.pack(4 + size + len(body), codec << 24 | size) + header + body


def _json(parts: Parts, rng: random.Random) -> bytes:
    fields = parts.header if "extFields" in parts.header else {**parts.header,
                                                               "extFields": parts.ext}  # fmt: skip
    if rng.random() < 0.3:  # in another order than our client's
        fields = dict(sorted(fields.items()))
    try:
        text = orjson.dumps(fields)
    except (TypeError, orjson.JSONEncodeError):  # integers past 64 bits, lone surrogates
        text = _any_json(fields).encode("utf-8", "surrogatepass")
    if rng.random() < 0.004:
        return text[:-1] + b',"remark":' + nested(rng) + b"}"
    return text


def _any_json(value: Any) -> str:
    """JSON without orjson's limits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_any_json(str(k))}:{_any_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_any_json, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return orjson.dumps(value).decode()


def _binary(parts: Parts) -> bytes:
    h = parts.header
    number: dict[str, int] = {name: h[name] if type(h.get(name)) is int else 0
                              for name in ("code", "version", "opaque", "flag")}  # fmt: skip
    items = []
    for key, value in parts.ext.items():
        name = key.encode()
        content = (value if type(value) is str else _any_json(value)).encode("utf-8", "replace")
        items.append(
            struct.pack(">H", len(name)) + name + struct.pack(">I", len(content)) + content
        )
    ext = b"".join(items)
    remark = str(h["remark"]).encode() if h.get("remark") else b""
    return b"".join((
        _FIXED.pack(number["code"] & 0xFFFF, 3, number["version"] & 0xFFFF,
                    number["opaque"] & 0xFFFFFFFF, number["flag"] & 0xFFFFFFFF),
        struct.pack(">I", len(remark)), remark, struct.pack(">I", len(ext)), ext,
    ))  # fmt: skip


def _misframed(data: bytes, rng: random.Random) -> bytes:
    """Its length or header word is wrong, or some bytes."""
    kind = rng.randrange(4)
    if kind == 0:
        return struct.pack(">I", rng.choice(EDGES) & 0xFFFFFFFF) + data[4:]
    if kind == 1:
        return data[:4] + struct.pack(">I", rng.choice(EDGES) & 0xFFFFFFFF) + data[8:]
    if kind == 2:
        size = struct.unpack_from(">I", data, 4)[0] & 0xFFFFFF
        made = damaged(data[8 : 8 + size], rng)  # framed well, and no header
        return join(made, data[8 + size :], rng.choice((0, 1, 2)))
    return damaged(data, rng)


def changed_body(body: bytes, rng: random.Random) -> bytes:
    """A body that differs: in a value if it is JSON, plain or compressed, else in its bytes."""
    if rng.random() < 0.02:
        return nested(rng)
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(20_000))
    if body[:1] == b"\x78":
        try:
            plain = zlib.decompress(body)
        except zlib.error:
            return damaged(body, rng)
        made = changed_body(plain, rng) if rng.random() < 0.8 else body
        return zlib.compress(made, 1) if rng.random() < 0.9 else damaged(zlib.compress(made), rng)
    if body[:1] in (b"{", b"["):
        try:
            return changed_json(body, rng)
        except orjson.JSONDecodeError:
            pass  # it only looks like JSON
    return damaged(body, rng) if body else rng.randbytes(rng.randrange(1, 40))


def changed_json(text: bytes, rng: random.Random) -> bytes:
    """One value of it is another. Raises JSONDecodeError."""
    value = orjson.loads(text)
    at: Any = value
    for _ in range(12):  # deeper is no odder
        if not at:
            break
        if isinstance(at, dict):
            key: Any = rng.choice(list(at))
        elif isinstance(at, list):
            key = rng.randrange(len(at))
        else:
            break
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.85:
            at = at[key]
            continue
        kind = rng.random()
        if kind < 0.1:
            del at[key]
        elif kind < 0.2 and isinstance(at, dict):
            at[odd_text(rng)] = at.pop(key)
        else:
            at[key] = odd(rng)
        break
    try:
        return _any_json(value).encode("utf-8", "surrogatepass")
    except RecursionError:  # it was nested before; what is deeper is in `nested`
        return damaged(text, rng)


def batch(rng: random.Random) -> bytes:
    """The body of a SEND_BATCH_MESSAGE (remoting-protocol 4.1), mostly right."""
    items = bytearray()
    for _ in range(rng.randrange(1, 5)):
        body = rng.randbytes(rng.randrange(1, 40))
        properties = plausible("i", "text", rng).encode()[:200]
        size = 22 + len(body) + len(properties)
        for number in (size, 0, 0, 0, len(body)):
            items += number.to_bytes(4, "big")
        items += body + len(properties).to_bytes(2, "big") + properties
    return bytes(items)
