"""Steers a broker's fault layer from the harness while it runs, through two small files.

    DIR/<node>/faults/control      4096 bytes, mapped into the broker (little-endian)
        0   u64   version: rises with every change of rules.json
        8   i64   ms by which the wall clock is off
        16  i64   strobe: further ms by which it is off half of the time,
        24  i64   strobe: duration of each half in ms; 0: no strobe
        64  u64   x 64: per slot, the number of calls that matched a rule
    DIR/<node>/faults/rules.json   key of a fault → its rules, each with its slot

The broker detects changes by a single comparison of mapped memory per call. Counts are in the
mapped file, so "the third write" stays the third over a restart. The broker reads, the harness
writes; a lock serialises the harness's commands.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import orjson

CONTROL_BYTES = 4096
SLOTS_MAX = 64
STALL_POLL_S = 0.01
_VERSION = struct.Struct("<Q")
_CLOCK = struct.Struct("<qqq")
_CLOCK_AT = 8
_COUNT = struct.Struct("<Q")
_COUNTS_AT = 64

READ, WRITE, SYNC, ALLOCATE = "read", "write", "sync", "allocate"
CALLS = (READ, WRITE, SYNC, ALLOCATE)
ERROR, FULL, SLOW, STALL, LIE, SHORT = "error", "full", "slow", "stall", "lie", "short"
EFFECTS = (ERROR, FULL, SLOW, STALL, LIE, SHORT)


class TooManyRules(Exception):
    """All slots of a node's control file are used."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its effect on the calls that match.

    error   EIO                          full   ENOSPC where new blocks are needed, none left to see
    slow    `delay_ms` more              stall  they do not return before the rule is gone
    lie     a sync that does nothing and says it did
    short   a write that does half and says EIO

    `pattern` is matched against the path below the store ("commitlog/*"); `skip` matching calls
    pass first, then `times` are hit (0: all until the rule is dropped).
    """

    effect: str
    calls: tuple[str, ...]
    pattern: str = "*"
    skip: int = 0
    times: int = 0
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        assert self.effect in EFFECTS, self.effect
        assert self.calls and set(self.calls) <= set(CALLS), self.calls


class Steering:
    """The harness's end. Every method may be called whether or not the broker runs."""

    def __init__(self, home: Path) -> None:
        """`home` is the node's directory of faults; it is made if missing."""
        self.home = home
        _create(home)

    def put(self, key: str, rules: Sequence[Rule]) -> None:
        """Set the rules under `key`, replacing earlier rules. Raises TooManyRules."""
        with self._locked() as (result, control):
            result.pop(key, None)
            free = sorted(set(range(SLOTS_MAX)) - {slot for _, slot in _flat(result)})
            if len(free) < len(rules):
                raise TooManyRules(f"{self.home}: {SLOTS_MAX} rules at most")
            result[key] = list(zip(rules, free, strict=False))
            for _, slot in result[key]:
                control[_count_at(slot)] = _COUNT.pack(0)

    def drop(self, key: str) -> None:
        """Remove the rules under `key`; harmless if there are none."""
        with self._locked() as (result, _):
            result.pop(key, None)

    def rules(self) -> dict[str, list[Rule]]:
        with self._locked() as (result, _):
            return {key: [rule for rule, _ in rules] for key, rules in result.items()}

    def clock_offset_ms(self) -> int:
        """Return the wall clock's offset that `set_clock` has set, without the strobe."""
        with self._locked() as (_, control):
            return int(_CLOCK.unpack_from(control, _CLOCK_AT)[0])

    def set_clock(self, offset_ms: int, strobe_ms: int = 0, period_ms: int = 0) -> None:
        """Set the node's wall clock off by `offset_ms`, and by `strobe_ms` more for half of each 2
        `period_ms`. Zeros reset it."""
        with self._locked() as (_, control):
            control[_CLOCK_AT : _CLOCK_AT + _CLOCK.size] = _CLOCK.pack(
                offset_ms, strobe_ms, period_ms
            )

    @contextmanager
    def _locked(self) -> Iterator[tuple[dict[str, list[tuple[Rule, int]]], mmap.mmap]]:
        """Yield the rules and the mapped file for changes; publish them afterwards."""
        with (self.home / "control").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with mmap.mmap(file.fileno(), CONTROL_BYTES) as control:
                result = _read_rules(self.home)
                before = {key: list(rules) for key, rules in result.items()}
                yield result, control
                if result != before:
                    _write_rules(self.home, result)
                    version = _VERSION.unpack(control[0:8])[0]
                    control[0:8] = _VERSION.pack(version + 1)  # last, so that everything is there


class Control:
    """The broker's end. Thread-safe."""

    def __init__(
        self,
        home: Path,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        _create(home)
        self._home = home
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._sleep = sleep
        with (home / "control").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CONTROL_BYTES)
        self._lock = threading.Lock()
        self._version = b""
        self._rules: list[tuple[Rule, int]] = []

    def wall_ms(self) -> int:
        """Return the wall clock as the harness wants it, in ms."""
        now_ms = self._wall_ns() // 1_000_000
        offset_ms, strobe_ms, period_ms = self._clock()
        if period_ms and self._monotonic_ns() // 1_000_000 // period_ms % 2:
            offset_ms += strobe_ms
        return now_ms + offset_ms

    def _clock(self) -> tuple[int, int, int]:
        return _CLOCK.unpack_from(self._map, _CLOCK_AT)

    def rules(self) -> list[tuple[Rule, int]]:
        if self._map[0:8] != self._version:
            with self._lock:
                version = self._map[0:8]
                self._rules = _flat(_read_rules(self._home))
                self._version = version
        return self._rules

    def effect(self, call: str, path: str) -> str:
        """Return the effect for this call, or "". Delays have happened when it returns.

        Every matching rule counts. Delays of several hits add up, and the first of the remaining
        rules is returned. Blocks as long as a matching rule stalls.
        """
        result = ""
        for rule, slot in self.rules():
            if call not in rule.calls or not fnmatchcase(path, rule.pattern):
                continue
            if not self._hits(rule, slot):
                continue
            if rule.effect == SLOW:
                self._sleep(rule.delay_ms / 1000)
            elif rule.effect == STALL:
                while (rule, slot) in self.rules():
                    self._sleep(STALL_POLL_S)
            else:
                result = result or rule.effect
        return result

    def is_full(self) -> bool:
        """Return whether the disk should look full."""
        return any(rule.effect == FULL for rule, _ in self.rules())

    def close(self) -> None:
        self._map.close()

    def _hits(self, rule: Rule, slot: int) -> bool:
        at = _count_at(slot)
        with self._lock:
            count = _COUNT.unpack(self._map[at])[0]
            self._map[at] = _COUNT.pack(count + 1)
        return count >= rule.skip and (not rule.times or count < rule.skip + rule.times)


def _count_at(slot: int) -> slice:
    at = _COUNTS_AT + slot * _COUNT.size
    return slice(at, at + _COUNT.size)


def _flat(by_key: dict[str, list[tuple[Rule, int]]]) -> list[tuple[Rule, int]]:
    return [entry for rules in by_key.values() for entry in rules]


def _create(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / "control", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < CONTROL_BYTES:  # zeros: no rules, the correct time
            os.truncate(descriptor, CONTROL_BYTES)
    finally:
        os.close(descriptor)


def _read_rules(home: Path) -> dict[str, list[tuple[Rule, int]]]:
    try:
        data = orjson.loads((home / "rules.json").read_bytes())
    except FileNotFoundError:
        return {}
    result = {}
    for key, entries in data.items():
        result[key] = [
            (Rule(**(entry["rule"] | {"calls": tuple(entry["rule"]["calls"])})), entry["slot"])
            for entry in entries
        ]
    return result


def _write_rules(home: Path, by_key: dict[str, list[tuple[Rule, int]]]) -> None:
    data = {
        key: [{"slot": slot, "rule": asdict(rule)} for rule, slot in rules]
        for key, rules in by_key.items()
    }
    temporary = home / "rules.json.new"
    temporary.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    temporary.replace(home / "rules.json")
