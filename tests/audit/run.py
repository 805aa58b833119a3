"""One run of a three-replica group as files: a plan of frames and sends, then damage, then disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from raftmq.store.frame import FrameKind
from tests.audit.stores import History, Log, Message, Placed, queue_units, write_store

TOPIC = "Flights"
QUEUES = 3
NAMES = ("n0", "n1", "n2")


def message_id(number: int) -> str:
    return f"7F0000010000000000000000{number:08X}"


@dataclass
class Run:
    """A run under construction: what is to be stored, what the clients saw, and where it lies.

    `messages` are stored in this order, a few to a frame; change it before `store()`. Outcomes are
    'ok' unless set by number. After `store()`, `logs`, `units` and `commits` can be damaged per
    node before `write()`.
    """

    root: Path
    messages: list[Message] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    outcomes: dict[str, tuple[str, int]] = field(default_factory=dict)  # id → (outcome, attempts)
    acknowledged_as: dict[str, dict[str, object]] = field(default_factory=dict)
    bodies_sent: dict[str, bytes] = field(default_factory=dict)
    fields_sent: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    log: Log = field(default_factory=Log)
    logs: dict[str, Log] = field(default_factory=dict)
    units: dict[str, dict[tuple[str, int], bytes]] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    history: History = field(default_factory=History)

    @classmethod
    def plan(cls, root: Path, count: int = 60) -> Run:
        """`count` messages of one topic over three queues, an order key each, all sent once."""
        run = cls(root)
        for i in range(count):
            order = f"N{i % 9}"
            message = Message(message_id(i), f"row {i}".encode(), queue=i % QUEUES, order=order)
            run.messages.append(message)
            run.sent.append(message)
            run.seqs[message.id] = i // 9
        return run

    def store(
        self,
        first_index: int = 0,
        terms: tuple[int, ...] = (1, 1, 2, 2, 5),
        command: bytes = b'{"offsets":[]}' * 20,
    ) -> Run:
        """Lay the messages out in frames, with other frames between, the same on every node."""
        log = self.log
        log.index = first_index
        if log.framed:
            log.other(terms[0], FrameKind.NOOP)
        groups = [self.messages[i : i + 7] for i in range(0, len(self.messages), 7)]
        for number, group in enumerate(groups):
            term = terms[min(number * len(terms) // len(groups), len(terms) - 1)]
            log.frame(term, group)
            if log.framed and number % 3 == 0:
                log.other(term, FrameKind.COMMAND, command)
            log.frame(term, [Message(message_id(10_000 + number), b"x" * 300, topic="Other")])
        for name in NAMES:
            self.logs[name] = log.copy()
            self.units[name] = queue_units(log)
            self.commits[name] = log.end
        return self

    def placed(self, number: int) -> Placed:
        """The first stored copy of message `number`."""
        return next(p for p in self.log.placed if p.message.id == message_id(number))

    def write(self) -> Run:
        """Write the three stores and the history."""
        for name in NAMES:
            directory = self.root / name / "store"
            write_store(directory, self.logs[name], self.commits[name], self.units[name])
        by_id: dict[str, Placed] = {}
        for placed in self.log.placed:
            by_id.setdefault(placed.message.id, placed)
        for message in self.sent:
            op = self.history.invoke(
                message,
                self.seqs[message.id],
                self.bodies_sent.get(message.id),
                self.fields_sent.get(message.id),
            )
            outcome, attempts = self.outcomes.get(message.id, ("ok", 1))
            if outcome == "ok":
                changed = self.acknowledged_as.get(message.id, {})
                placed = by_id.get(message.id) or Placed(message, 1 << 20, 100, 999)
                self.history.ok(op, placed, attempts, **changed)
            elif outcome != "open":
                self.history.lost(op, outcome, attempts)
        self.history.write(self.history_path)
        return self

    @property
    def history_path(self) -> Path:
        return self.root / "history.jsonl"

    @property
    def stores(self) -> dict[str, str]:
        return {name: str(self.root / name / "store") for name in NAMES}
