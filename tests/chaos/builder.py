"""Hand-made histories with a call per event; every checker's test starts from a clean history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.chaos.history.assembly import assemble
from raftmq.chaos.history.events import History


class HistoryBuilder:
    """Collects records with a clock that moves 1 ms per event."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = [{"type": "meta", "version": 1, "t_ns": 0}]
        self.op = 0
        self.waited_ns = 0

    def wait(self, seconds: float) -> None:
        """Advance the clock before the next event."""
        self.waited_ns += int(seconds * 1e9)

    def add(self, kind: str, function: str, process: str, op: int = 0, /, **fields: Any) -> int:
        if not op:
            self.op += 1
            op = self.op
        t_ns = len(self.records) * 1_000_000 + self.waited_ns
        self.records.append(
            {"type": kind, "f": function, "op": op, "t_ns": t_ns, "p": process, **fields}
        )
        return op

    def invoke(
        self, name: str, order: str = "", seq: int = 0, process: str = "producer-0", **more: Any
    ) -> int:
        fields = {"id": name, "topic": "T", "key": name, "order": order, "seq": seq, "crc": 1}
        return self.add("invoke", "send", process, **fields, **more)

    def ok(
        self,
        op: int,
        queue: int,
        offset: int,
        attempts: int = 1,
        process: str = "producer-0",
        **more: Any,
    ) -> int:
        position = {"queue": queue, "offset": offset, "msg_id": "", "attempts": attempts}
        return self.add("ok", "send", process, op, **position, **more)

    def sent(self, name: str, queue: int, offset: int, **more: Any) -> None:
        """A send, invoked and acknowledged at `queue`, `offset`, perhaps of a `broker`, or with a
        `status`."""
        attempts = more.pop("attempts", 1)
        answer = {key: more.pop(key) for key in ("status", "broker") if key in more}
        self.ok(self.invoke(name, **more), queue, offset, attempts, **answer)

    def ended(self, name: str, outcome: str, attempts: int = 1) -> None:
        op = self.invoke(name)
        self.add(outcome, "send", "producer-0", op, error="broken", attempts=attempts)

    def consumed(
        self, queue: int, *pairs: tuple[int, str], process: str = "consumer-0", **more: Any
    ) -> None:
        offsets, ids = [offset for offset, _ in pairs], [name for _, name in pairs]
        self.add("ok", "consume", process, topic="T", queue=queue, offsets=offsets, ids=ids, **more)

    def committed(
        self,
        queue: int,
        offset: int | None,
        function: str = "commit",
        process: str = "consumer-0",
        **more: Any,
    ) -> None:
        self.add("ok", function, process, topic="T", group="G", queue=queue, offset=offset, **more)

    def fetched(self, queue: int, offset: int | None, **more: Any) -> None:
        self.committed(queue, offset, "fetch", "observer", **more)

    def committing(self, queue: int, offset: int, process: str = "consumer-0") -> int:
        """A commit that `answered` answers later, or never."""
        position = {"topic": "T", "group": "G", "queue": queue, "offset": offset}
        return self.add("invoke", "commit", process, **position)

    def answered(self, op: int, queue: int, offset: int, process: str = "consumer-0") -> None:
        position = {"topic": "T", "group": "G", "queue": queue, "offset": offset}
        self.add("ok", "commit", process, op, **position)

    def joined(self, process: str) -> None:
        self.add("ok", "join", process, group="G")

    def wrote(
        self, version: int, outcome: str = "ok", name: str = "X", writer: str = "writer"
    ) -> None:
        """A topic's configuration written, with that outcome ("": none)."""
        fields = {"what": "topic", "name": name, "version": version}
        op = self.add("invoke", "meta_write", writer, **fields)
        if outcome:
            self.add(outcome, "meta_write", writer, op, **fields)

    def reading(self, name: str = "X") -> int:
        return self.add("invoke", "meta_read", "reader", what="topic", name=name)

    def read(self, version: int | None, op: int = 0, name: str = "X") -> None:
        """A topic's configuration read back (None if missing), after `reading` if that was
        called."""
        op = op or self.reading(name)
        self.add("ok", "meta_read", "reader", op, what="topic", name=name, version=version)

    def fault(self, kind: str, *nodes: str, number: int = 1, heal: bool = True) -> None:
        fields = {"fault": number, "kind": kind, "whom": "leader", "nodes": list(nodes)}
        fields |= {"role": "leader", "pid": 7, "detail": kind}
        for function in ("inject", "heal")[: 1 + heal]:
            op = self.add("invoke", function, "nemesis", **fields)
            self.add("ok", function, "nemesis", op, **fields)

    def inflicted(self, skipped: Sequence[str] = (), stuck: Sequence[str] = ()) -> None:
        self.add("ok", "inflicted", "runner", skipped=list(skipped), stuck=list(stuck))

    def logs(self, lines: int, *bad: tuple[str, str], **more: Any) -> None:
        """Logs of `lines` lines were searched; `bad` are (node, line)."""
        for node, line in bad:
            self.add("ok", "log_line", "observer", node=node, line=line, level="ERROR", **more)
        self.add("ok", "logs", "observer", lines={"n0": lines})

    def replicas(self, group: str = "broker-a", errors: Any = None, **digests: str) -> None:
        """Each node's digests of two parts, a letter each."""
        parts = {node: {"0": text[0], "512": text[1]} for node, text in digests.items()}
        fields = {"group": group, "start": 0, "end": 1000, "parts": parts, "errors": errors or {}}
        self.add("ok", "replicas", "runner", **fields)

    def drained(self, complete: bool = True) -> None:
        self.add("ok", "drain", "runner", topic="T", group="G", complete=complete)

    # ---- deferred messages

    def posted(self, name: str, outcome: str = "ok", attempts: int = 1, **more: Any) -> None:
        """A message of a workload `work`, sent with that outcome ("": none)."""
        fields = {"work": "delayed", "id": name, "topic": "T", "delay_ms": 0} | more
        op = self.add("invoke", "post", "producer-0", **fields)
        if outcome:
            self.add(outcome, "post", "producer-0", op, **fields, attempts=attempts)

    def decided(self, name: str, decision: str, outcome: str = "ok") -> None:
        """A producer ends a transaction by itself."""
        op = self.add("invoke", "decide", "producer-0", id=name, decision=decision)
        self.add(outcome, "decide", "producer-0", op, id=name, decision=decision)

    def checked(self, name: str, decision: str) -> None:
        """A check-back's answer."""
        self.add("invoke", "decide", "check", id=name, decision=decision, check=True)

    def delivered(self, name: str, offset: int, queue: int = 0, **more: Any) -> None:
        position = {"topic": "T", "broker": "b", "queue": queue, "offset": offset, "id": name}
        fields = {"work": "delayed", "group": "G", "store_ms": 0, "times": 0, "accepted": True}
        self.add("ok", "deliver", "consumer-0", **(fields | position | more))

    def given_back(
        self, name: str, times: int, outcome: str = "ok", *, tries: int = 1, seen: int = -1,
        dead: bool = False,
    ) -> None:  # fmt: skip
        fields = {"work": "retries", "id": name, "times": times, "dead": dead}
        fields["seen"] = times if seen < 0 else seen
        op = self.add("invoke", "give_back", "consumer", **fields)
        if outcome:
            self.add(outcome, "give_back", "consumer", op, **fields, tries=tries)

    def popped(
        self, name: str, began_ms: float | None = None, process: str = "consumer-0",
        invisible_ms: int = 1_000, times: int = 0,
    ) -> None:  # fmt: skip
        """Without `began_ms` the pop started immediately before."""
        now_ns = len(self.records) * 1_000_000 + self.waited_ns
        began_ns = now_ns if began_ms is None else int(began_ms * 1e6)
        more = {"began_ns": began_ns, "invisible_ms": invisible_ms, "times": times}
        self.add("ok", "pop", process, work="pop", group="G", topic="T", id=name, **more)

    def pop_ended(
        self, name: str, outcome: str = "ok", *, what: str = "ack", invisible_ms: int = 0,
        op: int | None = None,
    ) -> int:  # fmt: skip
        """Without an outcome it is only started; with the number of a started operation it is
        answered."""
        fields = {"work": "pop", "id": name, "what": what, "invisible_ms": invisible_ms}
        if op is None:
            op = self.add("invoke", "pop_end", "consumer-0", **fields)
        if outcome:
            self.add(outcome, "pop_end", "consumer-0", op, **fields)
        return op

    def stored(self, name: str, store_ms: int = 0, work: str = "delayed") -> None:
        position = {"broker": "b", "queue": 0, "offset": 0, "store_ms": store_ms}
        self.add("ok", "stored", "scanner", work=work, id=name, **position)

    def scanned(self, work: str = "delayed") -> None:
        self.add("ok", "scan", "scanner", work=work, records=7)

    def worked(
        self, first: int, last: int, ms: float, process: str = "consumer-0", queue: int = 0,
        done: bool = True,
    ) -> None:  # fmt: skip
        """A piece of work that started `ms` before now."""
        began_ns = len(self.records) * 1_000_000 + self.waited_ns - int(ms * 1e6)
        position = {"group": "G", "topic": "T", "broker": "b", "queue": queue}
        span = {"began_ns": began_ns, "first": first, "last": last, "done": done}
        self.add("ok", "work", process, **position, **span)

    def locking(self, client: str, *, unlock: bool = False) -> int:
        """A request for a queue's lock, or an unlock, with a later answer or none."""
        position = {"group": "G", "topic": "T", "broker": "b", "queue": 0, "unlock": unlock}
        return self.add("invoke", "lock", client, **position)

    def locked(self, client: str, granted: bool = True, op: int = 0, outcome: str = "ok") -> None:
        """The answer to a request for a lock, after `locking` if that was called."""
        op = op or self.locking(client)
        position = {"group": "G", "topic": "T", "broker": "b", "queue": 0, "unlock": False}
        self.add(outcome, "lock", client, op, **position, granted=granted)

    def unlocked(self, client: str, outcome: str = "ok") -> None:
        op = self.locking(client, unlock=True)
        position = {"group": "G", "topic": "T", "broker": "b", "queue": 0, "unlock": True}
        self.add(outcome, "lock", client, op, **position, granted=False)

    def kill(self, node: str = "n0") -> None:
        self.fault("kill", node, number=len(self.records), heal=False)

    def leader(self, node: str, term: int, group: str = "") -> None:
        self.add("ok", "leader", "observer", node=node, term=term, group=group)

    def build(self) -> History:
        return assemble(self.records)


def clean() -> HistoryBuilder:
    """A correct run with three ordered sends, consumed, committed and drained, and one leader."""
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
