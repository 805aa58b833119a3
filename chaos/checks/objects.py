"""Linearizability of many objects of one kind, each judged by itself.

A book adds an operation at its start and its answer later. Objects are judged again only if they
changed. Each operation of the history takes an `Operation` of memory. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .linearizability import Operation, Step, linearizable, unexplained
from .verdict import EXAMPLES_MAX, Check, Verdict

SHOWN_MAX = 6  # operations that an example names


@dataclass(slots=True)
class _Object:
    """The operations on an object, by their events' identity; each holds its event."""

    operations: dict[int, Operation] = field(default_factory=dict)
    verdict: Verdict | None = None  # None if not judged since the last operation
    example: str = ""


class Objects:
    def __init__(
        self,
        step: Step,
        describe: Callable[[Operation], str],
        title: Callable[[Any], str],
        relevant: Callable[[Sequence[Operation]], list[Operation]] = list,
    ) -> None:
        """`step` is the effect of an operation (chaos.checks.linearizability). `describe` and
        `title` describe an operation and an object. `relevant` filters out operations that cannot
        matter.
        """
        self._step = step
        self._text = describe
        self._title = title
        self._relevant = relevant
        self._objects: dict[Hashable, _Object] = {}
        self.reads = 0  # answered
        self.writes = 0  # answered, as all that is no read

    def __len__(self) -> int:
        return len(self._objects)

    def start(
        self, name: Hashable, event: Any, called_ns: int, action: Any, *, reads: bool = False
    ) -> None:
        """Note that an operation was called; `event` is known by its identity from now on."""
        result = self._objects.get(name)
        if result is None:
            result = self._objects[name] = _Object()
        result.operations[id(event)] = Operation(called_ns, None, action, reads, event=event)
        result.verdict = None

    def end(self, name: Hashable, event: Any, returned_ns: int, action: Any = None) -> None:
        """Record an operation's answer, and its final action if that differs."""
        result = self._objects[name]
        operation = result.operations[id(event)]
        operation.returned_ns = returned_ns
        operation.action = action or operation.action
        result.verdict = None
        if operation.reads:
            self.reads += 1
        else:
            self.writes += 1

    def knows(self, name: Hashable, event: Any) -> bool:
        """Return whether the operation was started and not withdrawn."""
        result = self._objects.get(name)
        return result is not None and id(event) in result.operations

    def withdraw(self, name: Hashable, event: Any) -> None:
        """Note that it has certainly not happened."""
        result = self._objects[name]
        del result.operations[id(event)]
        result.verdict = None

    def forget(self, name: Hashable) -> None:
        self._objects.pop(name, None)

    def check(self, name: str, detail: str, evidence: int) -> Check:
        """Return FAIL with a window of each object that no order explains; UNKNOWN without
        `evidence`, or if a search was too long."""
        wrong: list[str] = []
        undecided = count = 0
        for title, result in self._objects.items():
            if result.verdict is None:
                operations = self._relevant([*result.operations.values()])
                result.verdict = linearizable(operations, self._step)
                result.example = ""
            undecided += result.verdict is Verdict.UNKNOWN
            if result.verdict is Verdict.FAIL:
                count += 1
                if len(wrong) < EXAMPLES_MAX:
                    result.example = result.example or self._explain(title, result)
                    wrong.append(result.example)
        if count:
            return Check(name, Verdict.FAIL, count, detail, tuple(wrong))
        if undecided:
            detail += f"; {undecided} with too many orders to try"
        decided = evidence and not undecided
        return Check(name, Verdict.PASS if decided else Verdict.UNKNOWN, undecided, detail)

    def _explain(self, name: Hashable, state: _Object) -> str:
        operations = self._relevant([*state.operations.values()])
        window = unexplained(operations, self._step)
        start_ns = min(one.called_ns for one in window)
        answered = [one for one in window if one.returned_ns is not None]
        answered.sort(key=lambda one: one.returned_ns or 0)
        text = "; ".join(self._timed(one, start_ns) for one in answered[-SHOWN_MAX:])
        if len(answered) > SHOWN_MAX:
            text = f"{len(answered) - SHOWN_MAX} more; {text}"
        open_ones = [one for one in window if one.returned_ns is None and not one.reads]
        vague = [*dict.fromkeys(map(self._text, open_ones))]  # each once
        if vague:
            more = ", …" if len(vague) > SHOWN_MAX else ""
            text += f"; under way or without an answer: {', '.join(vague[:SHOWN_MAX])}{more}"
        return f"{self._title(name)}: no order explains {text}"

    def _timed(self, one: Operation, start_ns: int) -> str:
        assert one.returned_ns is not None
        called_ms, returned_ms = (
            (one.called_ns - start_ns) / 1e6,
            (one.returned_ns - start_ns) / 1e6,
        )
        return f"{self._text(one)} ({called_ms:,.1f} to {returned_ms:,.1f} ms)"
