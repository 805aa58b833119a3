"""The result of a check, and the parts that make up a check. Pure.

Verdicts merge as Jepsen's do: FAIL if any check fails, else INVALID if the experiment did not take
place (chaos.checks.experiment), else UNKNOWN if any is unknown, else PASS. A check without data is
UNKNOWN and not a pass, because a harness that never fails proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from ..history.events import Kind, Position

EXAMPLES_MAX = 10

Handlers = Mapping[Kind, Callable[[Any], None]]
Missing = tuple[str, int, int]  # a message's description, when it was due, its topic's drain (ns)


class Verdict(Enum):
    PASS = "pass"
    UNKNOWN = "unknown"
    INVALID = "invalid"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A broken promise. `drained`: proved by a complete drain; otherwise by a later position."""

    op: int
    id: str
    topic: str
    broker: str
    queue: int
    offset: int
    key: str
    acked_ns: int
    drained: bool

    @property
    def position(self) -> Position:
        return (self.broker, self.topic, self.queue, self.offset)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. `lost` lists all lost messages, in the check of lost messages only."""

    name: str
    verdict: Verdict
    count: int  # offenders; for counts that are allowed, how many there were
    detail: str
    examples: tuple[str, ...] = ()
    lost: tuple[LostMessage, ...] = ()


def merge(checks: Iterable[Check]) -> Verdict:
    """Return the worst of the verdicts, in the order above; UNKNOWN for none."""
    result = {check.verdict for check in checks}
    for verdict in (Verdict.FAIL, Verdict.INVALID, Verdict.UNKNOWN):
        if verdict in result:
            return verdict
    return Verdict.PASS if result else Verdict.UNKNOWN


class Book(Protocol):
    """The state by which checks judge. It is fed with events, and may be asked any time."""

    @property
    def applies(self) -> bool:
        """True if the history had something to look at."""

    def handlers(self) -> Handlers:
        """Return the function to call for each kind of event."""


B = TypeVar("B", bound=Book)


@dataclass(frozen=True, slots=True)
class Checker(Generic[B]):
    """A check with its name, the book that it reads, and the function that judges the book.

    Several checks may share a book. An `essential` check is part of every verdict; the rest only if
    the history has data for them (`applies`).
    """

    name: str
    book: B
    judge: Callable[[B, str], Check]
    essential: bool = False
    only_if: Callable[[B], bool] | None = None  # in place of the book's own word

    @property
    def applies(self) -> bool:
        return self.only_if(self.book) if self.only_if else self.book.applies

    def result(self) -> Check:
        return self.judge(self.book, self.name)


class Offenders:
    """Counts offenders and keeps the first EXAMPLES_MAX in words."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)

    def and_more(self, texts: Iterable[str]) -> Offenders:
        """Return these and those that are found only now."""
        more = Offenders()
        more.count, more.examples = self.count, list(self.examples)
        for each in texts:
            more.add(each)
        return more

    def check(self, name: str, detail: str, evidence: int) -> Check:
        """Return FAIL with offenders, else PASS with `evidence`, UNKNOWN without."""
        if self.count:
            return Check(name, Verdict.FAIL, self.count, detail, tuple(self.examples))
        return Check(name, Verdict.PASS if evidence else Verdict.UNKNOWN, 0, detail)


def judge(name: str, offenders: Iterable[str], detail: str, evidence: int) -> Check:
    """Return Offenders.check for offenders that are found only now."""
    return Offenders().and_more(offenders).check(name, detail, evidence)


def at(position: Position) -> str:
    """Format a position as topic-queue@offset, after the broker's name if any."""
    broker, topic, queue, offset = position
    return f"{of_broker(broker, f'{topic}-{queue}')}@{offset}"


def of_broker(broker: str, name: str) -> str:
    """Format the name of a queue, topic or group, after the broker's name if any."""
    return f"{broker}:{name}" if broker else name


def queue_title(key: tuple[str, str, str, int]) -> str:
    """Format a group's queue, given as group, broker, topic and queue number."""
    group, broker, topic, queue = key
    return f"{group} {of_broker(broker, f'{topic}-{queue}')}"


def judge_lost(name: str, missing: Iterable[Missing], required: int, detail: str) -> Check:
    """Judge losses of `required` messages. A missing message is lost if its topic was drained after
    it was due."""
    unseen = list(missing)
    if lost := [text for text, due_ns, drained_ns in unseen if due_ns <= drained_ns]:
        return judge(name, lost, detail, 1)
    if unseen or not required:
        detail += f"; {len(unseen)} not consumed yet and no complete drain to say why"
        return Check(name, Verdict.UNKNOWN, len(unseen), detail)
    return Check(name, Verdict.PASS, 0, detail)
