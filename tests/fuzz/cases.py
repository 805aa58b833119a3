"""From a seed to hostile input: requests whose fields and bodies are wrong in some way, and frames
whose bytes are. Pure.

Field names are those that the product's own code reads, so a new field is tried without being
listed here. Values are mostly plausible: what is refused at the first look finds no bugs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson

from remoting.codec import encode_command
from remoting.codes import RequestCode
from remoting.command import BINARY, JSON, ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from remoting.errors import RemotingProtocolError

ROOT = Path(__file__).parent.parent.parent
READERS = ("remoting", "broker", "namesrv")
_READ = re.compile(r"(text|integer|boolean)(?:_or|_or_none)?\(\s*\w+\.?\w*,\s*\"(\w+)\"")
BODY_BYTES_MAX = 300_000
TOPICS = ("Fuzzed", "Fuzzed2", "%RETRY%fuzz", "%DLQ%fuzz", "TBW102", "SCHEDULE_TOPIC_XXXX")
GROUPS = ("fuzz", "fuzz2")
NUMBERS = ("0", "1", "2", "3", "7", "12", "100", "1024")
ODD_NUMBERS = ("-1", "-2", "65536", "2147483647", "2147483648", "-2147483648", "1e3", "0x10",
               "9223372036854775807", "9223372036854775808", "01", " 1", "NaN")  # fmt: skip
ODD_TEXTS = ("", " ", "\0", "\x01", "\x02", "a\x01b\x02", "é", "💥", "..", "/", "%", "null", "{}",
             "A" * 300, "B" * 40_000, "TAGS\x01t\x02", "true\n", "\ud83d")  # fmt: skip
PROPERTIES = (
    "UNIQ_KEY\x01K1\x02TAGS\x01a\x02",
    "KEYS\x01k1 k2\x02",
    "DELAY\x013\x02",
    "DELAY\x01-9\x02UNIQ_KEY\x01\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01fuzz\x02",
    "TRAN_MSG\x01true\x02",
    "\x01\x02\x01\x02",
    "TAGS\x01",
    "IDEMPOTENT\x01true\x02UNIQ_KEY\x01same\x02",
    "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01nobody\x02CORRELATION_ID\x01c\x02",
    "A" * 33_000,
)
# Kept out: they do what they say, to the whole broker, and that is no damage.
ADMINISTRATION = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.TRANSFER_LEADERSHIP,
    }
)
BUSY = (10, 310, 310, 310, 320, 320, 11, 34, 36, 37, 41, 103, 105)  # what clients send all day
LIKELY = {  # where any number or text would seldom get far
    "b": ("Fuzzed", "Fuzzed", "Fuzzed", *TOPICS),
    "c": ("TBW102",),
    "e": ("0", "1", "2", "3", "-1", "9"),
    "f": ("0", "0", "0", "1", "4", "12", "32"),
    "queueId": ("0", "1", "2", "3", "-1", "9"),
    "topic": ("Fuzzed", "Fuzzed", *TOPICS),
}
BODIES: tuple[object, ...] = (
    {"clientID": "c", "producerDataSet": [{"groupName": "fuzz"}], "consumerDataSet": []},
    {"clientID": "c", "consumerDataSet": [{"groupName": "fuzz", "consumeType": "X",
     "subscriptionDataSet": [{"topic": "Fuzzed", "subString": "a||b", "subVersion": 1,
                              "tagsSet": ["a"], "codeSet": [97]}]}]},
    {"clientId": "c", "consumerGroup": "fuzz",
     "mqSet": [{"topic": "Fuzzed", "brokerName": "group-a", "queueId": 0}]},
    {"clientId": "c", "group": "fuzz", "subscriptionData": {"topic": "Fuzzed", "subString": "a >",
                                                            "expressionType": "SQL92"}},
    {"groupName": "fuzz2", "retryMaxTimes": 3, "consumeEnable": True},
    {"queueDatas": [{"brokerName": "group-a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]},
    {"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1, "timestamp": 1},
                                     "topicConfigTable": {"Fuzzed": {}}}},
    {"counter": 1, "stateVersion": 0, "timestamp": 5},
    [], [1, 2], {}, None, 7, "text", {"a": {"b": [{"c": None}] * 50}},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to send. `whole`: it is a frame, so the connection has to survive it."""

    data: bytes
    what: str
    whole: bool


@cache
def field_names() -> dict[str, str]:
    """Every field that some handler reads out of extFields, and as what: text, integer, boolean."""
    found = dict.fromkeys("abcdefghijklmn", "text") | dict.fromkeys("defghjl", "integer")
    for room in READERS:
        for path in sorted((ROOT / room).rglob("*.py")):
            found |= {name: kind for kind, name in _READ.findall(path.read_text())}
    return found


class Maker:
    """Cases for servers that know `codes`."""

    def __init__(self, seed: int, codes: Sequence[int]) -> None:
        self.rng = random.Random(seed)
        self.codes = [code for code in codes if code not in ADMINISTRATION]

    def case(self) -> Case:
        rng = self.rng
        command = self._command()
        kind = JSON if rng.random() < 0.8 else BINARY
        try:
            data = encode_command(command, kind)
        except (RemotingProtocolError, UnicodeEncodeError):  # it cannot even be written
            data = encode_command(RemotingCommand.request(command.code, {}, command.body), JSON)
        what = f"code {command.code} {command.ext!r:.2000} body {command.body[:200]!r}"
        if rng.random() < 0.75:
            return Case(data, what, True)
        return Case(self._damaged(data), f"damaged {what}", False)

    def _command(self) -> RemotingCommand:
        rng = self.rng
        code = rng.choice(self.codes) if rng.random() < 0.95 else rng.randrange(-5, 40_000)
        if rng.random() < 0.3:
            code = rng.choice(BUSY)
        ext: dict[str, str] | None = {}
        for name, read_as in field_names().items():
            if rng.random() < 0.95:
                ext[name] = self._value(name, read_as)
        if rng.random() < 0.02:
            ext = None
        command = RemotingCommand.request(code, ext, self._body())
        if rng.random() < 0.05:
            command.flag |= ONEWAY_FLAG
        if rng.random() < 0.02:
            command.flag |= RESPONSE_FLAG
        if rng.random() < 0.02:
            command.opaque = rng.choice((-1, 0, 2**31 - 1, -(2**31)))
        return command

    def _value(self, name: str, read_as: str) -> str:
        rng = self.rng
        if rng.random() < 0.02:
            return rng.choice(ODD_TEXTS if rng.random() < 0.5 else ODD_NUMBERS)
        if name in LIKELY:
            return rng.choice(LIKELY[name])
        if read_as == "integer":
            return rng.choice(NUMBERS)
        if read_as == "boolean":
            return rng.choice(("true", "false"))
        lower = name.lower()
        if name in ("i", "properties"):
            return rng.choice(PROPERTIES)
        if "topic" in lower or name == "b":
            return rng.choice(TOPICS)
        if "group" in lower or name == "a":
            return rng.choice(GROUPS)
        return rng.choice(("*", "a || b", "a > 3", "SQL92", "TAG", "fuzz", "move", "1", "group-a"))

    def _body(self) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            body = orjson.dumps(rng.choice(BODIES))
        elif kind < 0.75:
            body = rng.randbytes(rng.randrange(1, 200))
        elif kind < 0.9:
            body = _batch(rng)
        elif kind < 0.98:
            body = b""
        else:
            body = rng.randbytes(rng.randrange(BODY_BYTES_MAX))
        return self._damaged(body) if body and rng.random() < 0.3 else body

    def _damaged(self, data: bytes) -> bytes:
        """Flipped, cut, repeated, or with other numbers in it."""
        rng = self.rng
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(damaged)) if damaged else 0
            action = rng.randrange(5)
            if action == 0 and damaged:
                damaged[at] ^= 1 << rng.randrange(8)
            elif action == 1:
                del damaged[at : at + rng.randrange(1, 9)]
            elif action == 2:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
            elif action == 3:
                damaged[at : at + 4] = rng.choice(
                    (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff")
                )
            else:
                damaged[at:at] = damaged[at : at + rng.randrange(1, 60)]
        return bytes(damaged)


def _batch(rng: random.Random) -> bytes:
    """The body of a SEND_BATCH_MESSAGE (remoting-protocol 4.1), mostly right."""
    items = bytearray()
    for _ in range(rng.randrange(1, 5)):
        body = rng.randbytes(rng.randrange(1, 40))
        properties = rng.choice(PROPERTIES[:-1]).encode()
        size = 22 + len(body) + len(properties)
        for number in (size, 0, 0, 0, len(body)):
            items += number.to_bytes(4, "big")
        items += body + len(properties).to_bytes(2, "big") + properties
    return bytes(items)
