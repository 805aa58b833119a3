"""Values that a careless reader trips over: of the wrong type, out of range, odd as a text. Pure.

`field_names` are those that the product's own code reads, so a new field is tried without being
listed here.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
READERS = ("remoting", "broker", "namesrv")
_READ = re.compile(r"(text|integer|boolean)(?:_or|_or_none)?\(\s*\w+\.?\w*,\s*\"(\w+)\"")
_DECLARED = re.compile(r"Annotated\[(str|int|bool)(?: \| None)?, \"(\w+)\"")
_KINDS = {"str": "text", "int": "integer", "bool": "boolean"}

EDGES = (-1, 0, 1, -2, 127, 255, 256, 32_767, 32_768, 65_535, 65_536, 2**31 - 1, 2**31, -(2**31),
         -(2**31) - 1, 2**32 - 1, 2**32, 2**48, 2**48 + 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63),
         2**64 - 1, 2**64, 10**30)  # fmt: skip
ODD_TYPES: tuple[Any, ...] = (
    None, "text", "", "1", [], [1], [[]], {}, {"a": 1}, 1.5, -0.0, 1e308, True, False, "\x00",
)  # fmt: skip
ODD_NUMBER_TEXTS = (
    "1e3",
    "0x10",
    "01",
    " 1",
    "1 ",
    "NaN",
    "+1",
    "-0",
    "1.0",
    "\u0661",
    "1_000",
    "",
)
ODD_TEXTS = ("", " ", "\0", "\x01", "\x02", "a\x01b\x02", "é", "💥", "..", "/", "../../x", "%",
             "%s%d", "null", "{}", "{0}", "A" * 300, "B" * 40_000, "TAGS\x01t\x02", "true\n",
             "\r\n\r\n",
             "$(id)", "'\"", "\ufeff", "\u202e")  # fmt: skip
PROPERTIES = (
    "UNIQ_KEY\x01K1\x02TAGS\x01a\x02",
    "KEYS\x01k1 k2\x02",
    "DELAY\x013\x02",
    "DELAY\x01-9\x02UNIQ_KEY\x01\x02",
    "TIMER_DELIVER_MS\x019223372036854775807\x02",
    "TIMER_DELAY_SEC\x01-1\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01fuzz\x02",
    "TRAN_MSG\x01true\x02",
    "\x01\x02\x01\x02",
    "TAGS\x01",
    "IDEMPOTENT\x01true\x02UNIQ_KEY\x01same\x02",
    "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01nobody\x02CORRELATION_ID\x01c\x02",
    "A" * 33_000,
)
TOPICS = ("Fuzzed", "Fuzzed", "Fuzzed", "Fuzzed2", "%RETRY%fuzz", "%DLQ%fuzz", "TBW102",
          "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC")  # fmt: skip
GROUPS = ("fuzz", "fuzz", "fuzz2")
NUMBERS = ("0", "0", "1", "2", "3", "7", "12", "32", "100", "1024")
NESTING = (20, 100, 400, 900, 1_100, 3_000, 30_000)


def odd(rng: random.Random) -> Any:
    """A value for where something else belongs: any type, any range."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(EDGES)
    if kind == 1:
        return rng.choice(ODD_TEXTS)
    if kind == 2:
        return str(rng.choice(EDGES))
    return rng.choice(ODD_TYPES)


def odd_number(rng: random.Random) -> int:
    """An integer near some limit."""
    return rng.choice(EDGES) + rng.choice((0, 0, 0, 1, -1))


def odd_text(rng: random.Random) -> str:
    """A text for where a number or a name belongs."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(ODD_NUMBER_TEXTS)
    return rng.choice(ODD_TEXTS) if kind == 1 else str(odd_number(rng))


def nested(rng: random.Random) -> bytes:
    """JSON, or its beginning, that goes deep."""
    depth = rng.choice(NESTING)
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")))
    inner = rng.choice((b"1", b"", b"null", b'"x"'))
    return opened * depth + inner + (closed * depth if rng.random() < 0.7 else b"")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, repeated, or with other numbers in it."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(made)) if made else 0
        action = rng.randrange(6)
        if action == 0 and made:
            made[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            del made[at : at + rng.randrange(1, 9)]
        elif action == 2:
            made[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif action == 3:
            size = rng.choice((1, 2, 4, 8))
            made[at : at + size] = (odd_number(rng) % (1 << 8 * size)).to_bytes(size, "big")
        elif action == 4:
            del made[at:]
        else:
            made[at:at] = made[at : at + rng.randrange(1, 60)]
    return bytes(made)


@cache
def field_names() -> dict[str, str]:
    """Every field that some handler reads out of extFields, and as what: text, integer, boolean."""
    result = dict.fromkeys("abcdefghijklmn", "text") | dict.fromkeys("defghjl", "integer")
    for room in READERS:
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text()
            result |= {name: kind for kind, name in _READ.findall(source)}
            result |= {name: _KINDS[kind] for kind, name in _DECLARED.findall(source)}
    return dict(sorted(result.items()))


def plausible(name: str, read_as: str, rng: random.Random) -> str:
    """Return a value that a client could send there: one refused at the first look finds no
    bugs."""
    lower = name.lower()
    if name in ("e", "queueId"):
        return rng.choice(("0", "1", "2", "3", "-1", "9"))
    if name in ("f", "sysFlag"):
        return rng.choice(("0", "0", "0", "1", "4", "8", "12", "16", "32"))
    if name in ("i", "properties"):
        return rng.choice(PROPERTIES)
    if read_as == "integer":
        return rng.choice(NUMBERS)
    if read_as == "boolean":
        return rng.choice(("true", "false"))
    if "topic" in lower or name == "b":
        return rng.choice(TOPICS)
    if "group" in lower or name == "a":
        return rng.choice(GROUPS)
    return rng.choice(
        ("*", "a || b", "a > 3", "SQL92", "TAG", "fuzz", "move", "1", "fuzzed-broker")
    )
