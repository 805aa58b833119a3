"""Hand-made histories, one call per event; every checker's test starts from a clean one."""

from __future__ import annotations

from typing import Any

from chaos.history.events import History, assemble


class HistoryBuilder:
    """Collects records with a clock that moves 1 ms per event."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = [{"type": "meta", "version": 1, "t_ns": 0}]
        self.op = 0

    def add(self, kind: str, function: str, process: str, op: int = 0, **fields: Any) -> int:
        if not op:
            self.op += 1
            op = self.op
        t_ns = len(self.records) * 1_000_000
        self.records.append(
            {"type": kind, "f": function, "op": op, "t_ns": t_ns, "p": process, **fields}
        )
        return op

    def invoke(self, name: str, order: str = "", seq: int = 0, process: str = "producer-0") -> int:
        return self.add(
            "invoke", "send", process, id=name, topic="T", key=name, order=order, seq=seq, crc=1
        )

    def ok(self, op: int, queue: int, offset: int, attempts: int = 1, process: str = "producer-0"):
        place = {"queue": queue, "offset": offset, "msg_id": "", "attempts": attempts}
        return self.add("ok", "send", process, op, **place)

    def sent(self, name: str, queue: int, offset: int, **more: Any) -> None:
        """A send, invoked and acknowledged at `queue`, `offset`."""
        attempts = more.pop("attempts", 1)
        self.ok(self.invoke(name, **more), queue, offset, attempts)

    def ended(self, name: str, outcome: str, attempts: int = 1) -> None:
        op = self.invoke(name)
        self.add(outcome, "send", "producer-0", op, error="broken", attempts=attempts)

    def consumed(self, queue: int, *pairs: tuple[int, str], process: str = "consumer-0") -> None:
        offsets, ids = [offset for offset, _ in pairs], [name for _, name in pairs]
        self.add("ok", "consume", process, topic="T", queue=queue, offsets=offsets, ids=ids)

    def committed(self, queue: int, offset: int, function: str = "commit") -> None:
        self.add("ok", function, "consumer-0", topic="T", group="G", queue=queue, offset=offset)

    def drained(self, complete: bool = True) -> None:
        self.add("ok", "drain", "runner", topic="T", group="G", complete=complete)

    def kill(self, node: str = "n0") -> None:
        op = self.add("invoke", "kill", "nemesis", node=node, pid=7, role="leader")
        self.add("ok", "kill", "nemesis", op, node=node, pid=7, role="leader")

    def leader(self, node: str, term: int) -> None:
        self.add("ok", "leader", "observer", node=node, term=term)

    def build(self) -> History:
        return assemble(self.records)


def clean() -> HistoryBuilder:
    """A run with nothing wrong: three ordered sends, consumed, committed, drained, one leader."""
    builder = HistoryBuilder()
    builder.leader("n0", 1)
    builder.sent("a", 0, 0, order="k", seq=0)
    builder.sent("b", 0, 1, order="k", seq=1)
    builder.sent("c", 1, 0, order="m", seq=0)
    builder.sent("d", 1, 1, order="m", seq=1)
    builder.consumed(0, (0, "a"), (1, "b"))
    builder.consumed(1, (0, "c"), (1, "d"))
    builder.committed(0, 1)
    builder.committed(0, 2)
    builder.drained()
    return builder
