"""Watches the servers while they are attacked; whatever must hold and does not is a `Finding`.

A thread of its own asks every node an ordinary request many times a second, on a connection that
stays open, and looks at its process and its log. Nothing here is measured in seconds of the wall:
a loop that stalls is known by the CPU time that its thread takes between a question and the
answer, compared with what ordinary requests took in the same run.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections import deque
from dataclasses import dataclass

from tests.fuzz.frames import join
from tests.fuzz.world import HOST, Node, World

PING_EVERY_S = 0.05
ENDS_WITHIN_S = 20.0  # a process whose connections close because it ends
STUCK_S = 90.0  # however busy the machine is: it does not answer any more
ORDINARY = 500  # requests whose cost is the measure
# Of the loop's time between a question and its answer. The measure is a refusal, the cheapest of
# all requests; what some connections can have under way, a quarter of a megabyte of small frames
# each, costs that of some ten thousand.
STALL_REQUESTS = 100_000
GROWTH_MAX = 400 << 20  # of memory, at any time; situations have narrower bounds
LOG_BYTES_PER_S_MAX = 40_000  # over LOG_WINDOW_S
LOG_WINDOW_S = 20.0
MARK = 1_987_654_321
PING = join(b'{"code":4242,"flag":0,"language":"OTHER","opaque":%d,"version":0}' % MARK, b"")
MARKED = b'"opaque":%d' % MARK
# An event of a kind that bad input must not cause, and the lines that belong to it.
_BAD_EVENT = re.compile(
    rb"^(?:\S+ \S+ (?:ERROR|CRITICAL) .*|Traceback .*|mqbroker: failed.*)\n"
    rb"(?:(?!\d{4}-\d\d-).*\n)*",
    re.M,
)
_FAILURES = re.compile(r"rocketmq_\w*(unforeseen|contained_failures)_total[ {]")
# A peer that has the group's secret may say that it is of another group, send other frames than
# there were, or claim to lead in another leader's term: that is told.
_EXPLAINED = (
    b" raftmq.dledger.transport.group_id foreign_group ",
    b" raftmq.dledger.transport.group_id other_history ",
    b" raftmq.dledger.transport.transport peer_breaks_rules ",
)
_TAIL_BYTES = 3_000


@dataclass(frozen=True, slots=True)
class Finding(Exception):
    """Something is wrong with a node: `kind` is died, stuck, stalled, memory, log, flood, cpu,
    refused, lost, leader or route."""

    kind: str
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.node}: {self.text}"


class Watch:
    """`with Watch(world) as watch:` once the nodes answer. With `go_on` what stands in logs ends
    nothing; it is in `noted`, once of each kind."""

    def __init__(self, world: World, go_on: bool = False) -> None:
        self.findings: list[Finding] = []
        self.noted: dict[str, Finding] = {}
        self._go_on = go_on
        self.cost_ns: dict[str, float] = {}  # of one ordinary request, by node
        self.late_s = 0.0  # the longest that this thread itself was held up
        self.worst_ns: dict[str, int] = {}
        self._world = world
        self._nodes = list(world.nodes.values())
        self._rss = {node.name: node.rss() for node in self._nodes}
        self._read = {node.name: 0 for node in self._nodes}
        self._written: dict[str, deque[tuple[float, int]]] = {n.name: deque() for n in self._nodes}
        self._asked: dict[str, socket.socket] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        for node in self._nodes:
            self._asked[node.name] = connected(node)
            self.cost_ns[node.name] = self._ordinary(node)
            self._look(node)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for each in self._asked.values():
            each.close()

    def check(self) -> None:
        """Raises the first finding."""
        if self.findings:
            raise self.findings[0]

    def check_counters(self) -> None:
        """Report contained failures as findings, too: their lines may have been held back. Raises
        Finding."""
        for node in self._nodes:
            where = f"http://{HOST}:{node.ports['http']}/metrics"
            with urllib.request.urlopen(where, timeout=STUCK_S) as answer:
                for line in answer.read().decode().splitlines():
                    if _FAILURES.match(line) and float(line.split()[-1]):
                        finding = Finding("log", node.name, f"{line}; see its log")
                        if not self._go_on:
                            raise finding
                        self.noted.setdefault(line, finding)

    def died(self, node: Node) -> Finding:
        """Why it did, as far as its log says; call it when it has."""
        assert node.process is not None
        code = node.process.wait(timeout=STUCK_S)
        tail = node.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return Finding("died", node.name, f"exit status {code}\n{tail}")

    def _run(self) -> None:
        while not self._over.wait(PING_EVERY_S):
            for node in self._nodes:
                before = time.monotonic()
                try:
                    self._ping(node)
                    self._look(node)
                except Finding as finding:
                    self.findings.append(finding)
                    return
                except (OSError, ValueError) as error:
                    ended = has_ended(node)
                    self.findings.append(
                        self.died(node)
                        if ended
                        else Finding(
                            "refused", node.name, f"closed on a well-behaved peer: {error}"
                        )
                    )
                    return
                self.late_s = max(self.late_s, time.monotonic() - before)

    def _ping(self, node: Node) -> None:
        """Ask it something, and weigh what its loop did meanwhile."""
        requested = self._asked[node.name]
        before_ns = node.loop_ns()
        deadline = time.monotonic() + STUCK_S
        requested.sendall(PING)
        ready = False
        while not ready:
            ready = bool(select.select([requested], [], [], PING_EVERY_S)[0])
            spent_ns = node.loop_ns() - before_ns
            count = spent_ns / self.cost_ns[node.name]
            if count > STALL_REQUESTS:
                raise Finding("stalled", node.name, f"it did the work of {count:.0f} requests, "
                              f"{spent_ns / 1e9:.2f} s, and had not answered one; it was at\n"
                              f"{'' if ready else _stack(node)}")  # fmt: skip
            if time.monotonic() > deadline:
                raise Finding("stuck", node.name, f"no answer for {STUCK_S} s\n{_stack(node)}")
        answered(requested, 1)
        self.worst_ns[node.name] = max(spent_ns, self.worst_ns.get(node.name, 0))

    def _look(self, node: Node) -> None:
        assert node.process is not None
        if node.process.poll() is not None:
            raise self.died(node)
        grown = node.rss() - self._rss[node.name]
        if grown > GROWTH_MAX:
            raise Finding("memory", node.name, f"{grown >> 20} MB more than at the beginning")
        self._read_log(node)

    def _read_log(self, node: Node) -> None:
        with node.log.open("rb") as file:
            file.seek(self._read[node.name])
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read[node.name] += len(new)
        now = time.monotonic()
        window = self._written[node.name]
        window.append((now, len(new)))
        while window[0][0] < now - LOG_WINDOW_S:
            window.popleft()
        for result in _BAD_EVENT.finditer(new):
            if any(texts in result.group() for texts in _EXPLAINED):
                continue
            text = result.group().decode(errors="replace")[-_TAIL_BYTES:]
            finding = Finding("log", node.name, text)
            if not self._go_on:
                raise finding
            self.noted.setdefault(_signature(text), finding)
        written = sum(size for _, size in window)
        if written > LOG_BYTES_PER_S_MAX * LOG_WINDOW_S and not self._go_on:
            tail = new[-_TAIL_BYTES:].decode(errors="replace")
            raise Finding("flood", node.name, f"{written} bytes logged in {LOG_WINDOW_S} s\n{tail}")

    def _ordinary(self, node: Node) -> float:
        requested = self._asked[node.name]
        requested.sendall(PING)
        answered(requested, 1)  # the first of a kind costs more
        before = node.loop_ns()
        requested.sendall(PING * ORDINARY)
        answered(requested, ORDINARY)
        return max(1.0, (node.loop_ns() - before) / ORDINARY)


def _stack(node: Node) -> str:
    """Return what its threads are doing: it writes that down and ends (PYTHONFAULTHANDLER)."""
    size = node.log.stat().st_size
    os.kill(node.pid, signal.SIGABRT)
    assert node.process is not None
    node.process.wait(timeout=STUCK_S)
    text = node.log.read_bytes()[size:].decode(errors="replace")
    return text[max(0, text.find("Current thread")) :][
        :_TAIL_BYTES
    ]  # the loop's: it had the signal


def _signature(text: str) -> str:
    """Return what tells events of one cause from others: where it was raised, and what."""
    matches = re.findall(r'(\w+/\w+\.py)(?:", line |:)(\d+)', text)
    last = text.rstrip().rsplit("\n", 1)[-1]
    return f"{matches[-1] if matches else ''} {re.sub(r'[^A-Za-z ]+', '', last)[:60]}"


def has_ended(node: Node) -> bool:
    """Return whether its process ends: that is seen some time after its connections have closed."""
    assert node.process is not None
    try:
        node.process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def connected(node: Node) -> socket.socket:
    """A connection to its remoting port."""
    result = socket.create_connection((HOST, node.ports["remoting"]), STUCK_S)
    result.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return result


def answered(asked: socket.socket, count: int) -> None:
    """Wait for so many answers. Raises TimeoutError, OSError."""
    for _ in range(count):
        (size,) = struct.unpack(">I", _exactly(asked, 4))
        _exactly(asked, size)


def _exactly(asked: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = asked.recv(size - len(data))
        if not more:
            raise ConnectionResetError("closed by the server")
        data += more
    return data
