"""The quick way of a send and the general one, in both header codecs: of whatever is sent they make
the same."""

import random
import struct
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from raftmq.broker.messages.send_request import (
    ENDING_SIZE_MAX,
    ENDINGS_CACHE_MAX,
    NAME_PREFIXES_MAX,
)
from raftmq.broker.processor import Processor
from raftmq.broker.send.fast_path import PLAIN_START
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codec import FrameReader, decode_command, encode_command
from raftmq.remoting.command import BINARY, RemotingCommand
from raftmq.remoting.errors import HeaderError, RemotingProtocolError
from raftmq.remoting.fair_scheduling import finish
from tests.broker.doubles import FakeConnection
from tests.broker.send.test_frame_builder import fields
from tests.broker.send.test_service import Bench

KEY = "UNIQ_KEY\x01{:032X}\x02"


class Peer(FakeConnection):
    """A connection whose frames are decoded and handled as remoting.connection does it. Keeps what
    sends do not take."""

    turn_is_over = False

    def __init__(self, address="10.0.0.9:4000"):
        super().__init__(address)
        self.handlers: Mapping[int, Any] = {}
        self.dispatched = []

    def dispatch(self, frame):
        try:
            command = decode_command(frame)
        except RemotingProtocolError:
            self.dispatched.append("malformed")
            return False
        handler = self.handlers.get(command.code)
        if handler is None or command.is_response:
            self.dispatched.append((command.code, command.opaque, command.ext, command.body))
            return True
        try:
            steps = handler(self, command)
            if steps is not None:
                finish(steps)
        except HeaderError as error:
            self.dispatched.append(str(error))
        return True


class Side:
    """A broker that is sent requests whose headers are of one kind: JSON with the code first, JSON
    with it last, or binary."""

    def __init__(self, code_first, *, binary=False, **config):
        self.binary = binary
        self.asked: list[Any] = []
        self.bench = Bench(on_request=lambda _, ext: self.asked.append(ext["i"]), **config)
        self.bench.state.topics.put(TopicConfig("%RETRY%g", 1, 1), 0)
        self.bench.state.topics.put(TopicConfig("R", 4, 0, 4), 0)
        self.quick = 0
        admit = self.bench.sends.admit_plain

        def counting(*arguments):
            taken = admit(*arguments)
            self.quick += taken
            return taken

        self.bench.sends.admit_plain = counting  # type: ignore[method-assign]
        self.processor = Processor(self.bench.sends, {})
        self.connection: Any = Peer()
        self.connection.handlers = self.processor.handlers
        self.code_first = code_first

    def send(self, requests):
        """(extFields, body, changes of the header); returns what came of them."""
        data = b""
        for opaque, (ext, body, changes) in enumerate(requests):
            header = {"code": 310, "extFields": ext, "flag": 0, "opaque": opaque} | changes
            if self.binary:
                command = RemotingCommand(310, opaque, ext=ext, body=body)
                for name, value in changes.items():
                    setattr(command, name, value)
                data += encode_command(command, BINARY)
                continue
            if not self.code_first:
                header = dict(reversed(header.items()))
            text = orjson.dumps(header)
            assert self.code_first or not text.startswith(PLAIN_START)
            data += struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body
        self.processor.on_raw(self.connection, FrameReader().split(data))
        frames = []
        while (frame := self.bench.log.cut(self.bench.sends)) is not None:
            self.bench.answer(frame)
            frames.append(frame.data)
        answers = [(a.opaque, a.code, a.remark, a.ext or {}) for a in self.connection.answers()]
        dispatched, self.connection.dispatched = self.connection.dispatched, []
        return frames, answers, dispatched, self.asked, self.bench.sends.held_bytes


ENDINGS = [
    "WAIT\x01true\x02",
    "WAIT\x01true",
    "",
    "TAGS\x01a\x02",
    "TAGS\x01标签\x02KEYS\x01ключ\x02",
    "XTAGS\x01a\x02",
    "WAIT\x01false\x02",
    "MSG_REGION\x01r\x02",
    "TRACE_ON\x01false\x02TAGS\x01b\x02",
    "CLUSTER\x01q\x02",
    "DELAY\x012\x02",
    "DELAY\x010\x02",
    "IDEMPOTENT\x01true\x02",
    "IDEMPOTENT\x01false\x02",
    "REPLY_TO_CLIENT\x01me\x02CORRELATION_ID\x01c\x02",
    "UNIQ_KEY\x01second\x02",
    "POP_CK\x010 1 2 3\x02TAGS\x01a\x02",
    "\x02\x02",
]
ODD = [
    {"e": "-1"},
    {"e": " 1"},
    {"e": "9"},
    {"e": "x"},
    {"g": "x"},
    {"g": "-1"},
    {"g": "9223372036854775808"},
    {"g": None},
    {"f": "8"},
    {"f": "16"},
    {"h": "-7"},
    {"h": 3},
    {"j": None},
    {"j": "1"},
    {"b": "Q"},
    {"b": "R"},
    {"b": "%RETRY%g"},
    {"i": None},
    {"i": "WAIT\x01true\x02"},
    {"i": "XUNIQ_KEY\x01abc\x02"},
    {"i": "UNIQ_KEY\x01abc"},
    {"i": "UNIQ_KEY\x01\x02TAGS\x01t\x02"},
    {"i": "UNIQ_KEY\x01aTAGS\x01b\x02"},
]
HEADERS = [{}, {}, {}, {"flag": 2}, {"flag": 1}, {"opaque": -7}, {"code": 310.0}, {"code": 11}]


def requests(random_, count, odd):
    made = []
    for _ in range(count):
        key = KEY.format(random_.getrandbits(128))
        ending = random_.choice(ENDINGS if odd else ENDINGS[:4])
        text = random_.choice([key + ending, key + ending, "A\x01b\x02" + key + ending])
        changes = random_.choice(ODD) if odd and random_.random() < 0.3 else {}
        ext = fields(text, e=str(random_.randrange(4))) | changes
        if random_.random() < 0.1:
            del ext["j"]
        body = random_.randbytes(random_.choice([1, 5, 100]) if not odd else random_.choice([0, 9]))
        made.append((ext, body, random_.choice(HEADERS) if odd else {}))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_fast_and_general_send_path_build_the_same_frames(seed, monkeypatch):
    random_ = random.Random(seed)
    monkeypatch.setattr("raftmq.broker.messages.send_request.uuid.uuid4", lambda: Fixed)
    quick, general = Side(True), Side(False)
    for _ in range(6):
        for odd in (False, True):
            sent = requests(random_, 40, odd)
            for request in sent if odd else [sent]:
                alone = [request] if odd else request
                assert quick.send(alone) == general.send(alone)
    assert quick.quick > 150
    assert general.quick == 0
    assert quick.asked


@pytest.mark.parametrize("seed", range(4))
def test_fast_and_general_send_path_reject_the_same_sends_when_full(seed, monkeypatch):
    random_ = random.Random(seed)
    monkeypatch.setattr("raftmq.broker.messages.send_request.uuid.uuid4", lambda: Fixed)
    quick, general = Side(True), Side(False)
    busy = 0
    for _ in range(20):
        bound = random_.randrange(200, 4_000)
        quick.bench.sends.held_bytes_max = general.bench.sends.held_bytes_max = bound
        sent = requests(random_, 40, False)
        made = quick.send(sent)
        assert made == general.send(sent)
        busy += sum(remark is not None and remark.startswith("[BUSY]") for *_, remark, _ in made[1])
    assert busy > 100
    assert quick.quick > 2 * busy / 3  # the refusals, too


@pytest.mark.parametrize("seed", range(2))
def test_json_and_binary_headers_give_the_same_frames(seed, monkeypatch):
    random_ = random.Random(seed)
    monkeypatch.setattr("raftmq.broker.messages.send_request.uuid.uuid4", lambda: Fixed)
    quick, binary = Side(True), Side(False, binary=True)
    for _ in range(200):
        ext, body, _ = requests(random_, 1, True)[0]
        texts = {name: value for name, value in ext.items() if type(value) is str and value}
        assert quick.send([(texts, body, {})]) == binary.send([(texts, body, {})])


NUMBERS: list[Any] = [
    None, True, "7", "x", [], [1], {}, {"a": {}}, 0.0, 1e300, -(1 << 31), (1 << 31) - 1,
    1 << 31, -(1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1, 0, 1, 2, 3,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_fast_and_general_send_path_reject_the_same_malformed_headers(seed, monkeypatch):
    """Both ways take the same headers, and neither admits what is no request at all."""
    random_ = random.Random(seed)
    monkeypatch.setattr("raftmq.broker.messages.send_request.uuid.uuid4", lambda: Fixed)
    quick, general = Side(True), Side(False)
    for _ in range(400):
        ext, body, _ = plain(random_.getrandbits(64))
        name = random_.choice(["code", "flag", "opaque", "version", "remark", "language", "ext"])
        value = random_.choice(NUMBERS)
        changes = {name: value}
        if name == "ext":
            ext[random_.choice("abcdefghijklmnz")] = value
            changes = {}
        else:
            for side in (quick, general):
                side.send([plain(1)])  # so that there is a quick way
        sent = [(ext, body, changes)]
        frames, answers, dispatched, *_ = made = quick.send(sent)
        assert made == general.send(sent)
        if name in ("code", "flag", "opaque", "version"):
            if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
                assert (frames, answers, dispatched) == ([], [], ["malformed"])


class Fixed:
    """A uuid that is the same in both runs: a message without UNIQ_KEY gets one."""

    hex = "0" * 32


@pytest.mark.parametrize("code_first", [True, False])
@pytest.mark.parametrize(
    "ending", ["", "TAGS\x01a\x02", "DELAY\x012\x02", "REPLY_TO_CLIENT\x01me\x02"]
)
def test_receipt_handle_of_a_popped_message_is_not_stored(code_first, ending):
    """A consumer would acknowledge the old handle, and receive the forwarded message again."""
    side = Side(code_first)
    texts = [f"POP_CK\x01old handle\x02{ending}", f"{ending}POP_CK\x01old handle"]
    texts += [f"{KEY.format(n)}{text}" for n, text in enumerate(texts)]
    sent: list[Any] = [(fields(i=text), b"body", {}) for text in texts]
    frames, answers, *_ = side.send(sent)
    assert [code for _, code, *_ in answers] == [0] * 4
    assert b"body" in b"".join(frames) and b"old handle" not in b"".join(frames)


def plain(number, **changes):
    return fields(KEY.format(number) + "WAIT\x01true\x02", **changes), b"body", {}


def test_fast_send_path_is_not_used_by_followers_or_with_a_full_disk():
    side = Side(True, leading=False)
    _, answers, *_ = side.send([plain(1), plain(2)])
    assert [code for _, code, _, _ in answers] == [14, 14]
    side.bench.sends.leadership(1, True)
    side.send([plain(3)])
    side.send([plain(4), plain(5)])
    assert side.quick == 2  # all but the first, which is read in full and remembered
    side.bench.sends.disk_full = "no room"
    _, answers, *_ = side.send([plain(6), plain(7)])
    assert [remark[:11] for _, _, remark, _ in answers] == ["[DISK_FULL]"] * 2
    side.bench.sends.disk_full = ""
    side.bench.sends.leadership(2, False)
    _, answers, *_ = side.send([plain(8), plain(9)])
    assert [remark[:12] for _, _, remark, _ in answers] == ["[NOT_LEADER]"] * 2
    assert side.quick == 2


def test_fast_and_general_send_path_have_the_same_limits():
    config = {"waiting_bytes_max": 8192, "frame_size_max": 1024}
    quick, general = Side(True, **config), Side(False, **config)
    quick.send([plain(1)])
    general.send([plain(1)])
    sent = [plain(number) for number in range(20)]
    frames, answers, *_ = result = quick.send(sent)
    assert result == general.send(sent)
    assert len(frames) > 1
    assert {code for _, code, _, _ in answers} == {0, 2}
    assert quick.quick > 0


def test_fast_send_path_cache_is_bounded():
    side = Side(True)
    rules = side.bench.rules
    for number in range(ENDINGS_CACHE_MAX + 10):
        ext = fields(KEY.format(number) + f"KEYS\x01k{number}\x02")
        side.bench.sends.receive((side.connection, 1, 1, 0), ext, b"x", b"12345678", 310)
    assert 0 < len(rules.endings) <= ENDINGS_CACHE_MAX
    rules.endings.clear()
    for size in (ENDING_SIZE_MAX - 10, ENDING_SIZE_MAX):
        ext = fields(KEY.format(1) + "K\x01" + "v" * size + "\x02")
        side.bench.sends.receive((side.connection, 1, 1, 0), ext, b"x", b"12345678", 310)
    assert len(rules.endings) == 1
    topic = side.bench.sends._topics["T"]
    for size in range(1, NAME_PREFIXES_MAX + 10):
        ext = fields(KEY.format(1) + "K\x01" + "v" * size + "\x02")
        side.bench.sends.receive((side.connection, 1, 1, 0), ext, b"x", b"12345678", 310)
    assert 0 < len(topic.name_prefixes) <= NAME_PREFIXES_MAX
