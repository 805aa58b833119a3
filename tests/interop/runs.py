"""One scenario with one client: what it starts, sends and is given, and what must be true of it.

A scenario works, says `strike()`, and goes on working while the leader is killed. Scenarios that
run at one time share that kill: it happens once all of them are in the middle of their work.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from tests.interop.driver import ClientError, Driver
from tests.interop.targets import Target, all_committed, committed, ends, make_topic
from tests.waiting import retrying, wait_until

PATIENCE_S = 300.0  # a bound against hanging: the Go client asks for routes every 30 s
ARRIVAL_S = 600.0  # until all scenarios of a wave are where the leader may die
STRIKE_S = 900.0  # the leader's death, and what is committed before and after it
PACE_S = 0.1  # between sends while the leader is dead
ASKING_PACE_S = 0.5  # of each scenario after its offsets: dozens at once are a load
IMPATIENT = (
    "timeout",
    "remotingsendrequest",
    "remotingconnect",
    "socketclose",  # Node's, when another request of its connection was not answered in 3 s
    "no consumer for this group",
    "check client in broker error",  # Java 5's words for any of the first three, asked with 46
)
STEPS = 10  # sends before the kill, and acknowledged ones after it
QUEUES = 4

Delivery = Mapping[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class Outcome:
    """The outcome of a scenario. Counts are of messages, over the whole of it, kill included."""

    client: str
    scenario: str
    before: bool = False  # everything until the kill was as it must be
    after: bool = False  # and everything afterwards
    error: str = ""
    acknowledged: int = 0
    unknown: int = 0  # sends that the client said had failed
    lost: int = 0  # acknowledged, and not delivered
    redelivered: int = 0  # the same place of the log handed out once more
    stored_twice: int = 0  # one message at two places of the log
    offsets_lost: int = 0  # how far committed offsets went back at the failover
    seconds: float = 0.0  # that it took, waiting for others included

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Strike:
    """The kill that the scenarios of a wave have in common. Nobody outlives it untouched: all are
    in the middle of their work when it happens, and none of them waits for it."""

    def __init__(self, target: Target, parties: int) -> None:
        self._target = target
        self._left = parties
        self._changed = threading.Condition()
        self._watched: dict[tuple[str, str], Outcome] = {}
        self._thread = threading.Thread(target=self._kill)
        self.over = threading.Event()  # another one leads
        self.error: BaseException | None = None

    def watch(self, group: str, topic: str, outcome: Outcome) -> None:
        """Compare what the group has committed before and after."""
        with self._changed:
            self._watched[group, topic] = outcome

    def arrive(self) -> None:
        """Return when all are here."""
        self.leave()
        with self._changed:
            assert self._changed.wait_for(lambda: self._left == 0, ARRIVAL_S), f"{self._left} late"

    def leave(self) -> None:
        """As `arrive`, of one that does not go on."""
        with self._changed:
            self._left -= 1
            if self._left == 0:
                self._thread.start()
                self._changed.notify_all()

    def wait_over(self) -> None:
        assert self.over.wait(STRIKE_S), "nobody leads"
        if self.error is not None:
            raise AssertionError("the kill failed") from self.error

    def _kill(self) -> None:
        try:
            with self._changed:
                watched = dict(self._watched)
            before = all_committed(self._target.namesrv, list(watched))
            self._target.strike()
            after = all_committed(self._target.namesrv, list(watched))
            for key, outcome in watched.items():
                for queue, offset in before[key].items():
                    outcome.offsets_lost += max(0, offset - after[key].get(queue, 0))
        except BaseException as error:  # told to whoever waits
            self.error = error
        finally:
            self.over.set()


@dataclass(slots=True)
class Sent:
    """A message that was acknowledged, and where."""

    body: str
    queue: int
    offset: int
    unique: str
    place: str


@dataclass(slots=True)
class Consumer:
    """A consumer in the driver; `deliveries` in the order of consumption."""

    run: "Run"
    name: str
    stopped: bool = False

    @property
    def deliveries(self) -> list[Delivery]:
        return self.run.driver.events(self.name)

    def bodies(self) -> list[str]:
        return [delivery["body"] for delivery in self.deliveries]

    def wait_for(self, bodies: set[str], patience_s: float = PATIENCE_S) -> None:
        """Until every one of them was delivered."""
        if not self.run.driver.wait(lambda: bodies <= set(self.bodies()), patience_s):
            missing = sorted(bodies - set(self.bodies()))
            raise AssertionError(f"{self.name} was not given {len(missing)}: {missing[:8]}")

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            patiently(lambda: self.run.driver.call("stop", name=self.name))


def patiently(call: Callable[[], T]) -> T:
    """Again where the client itself was not patient: Java's gives a name server 3 s and one
    connection, Node's each replica 3 s to hear that it leaves, and it takes it amiss that the
    broker does not know its consumer yet."""

    def impatient(error: BaseException) -> bool:
        return isinstance(error, ClientError) and any(t in str(error).lower() for t in IMPATIENT)

    return retrying(impatient, patience_s=PATIENCE_S, pause_s=PACE_S)(call)


@dataclass(slots=True)
class Run:
    """The run that a scenario is given. Names are its own: of topic, groups and clients."""

    driver: Driver
    target: Target
    kill: Strike
    outcome: Outcome
    tag: str
    sent: list[Sent] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # bodies whose send failed
    _names: list[str] = field(default_factory=list)
    _struck: bool = False

    @property
    def client(self) -> str:
        return self.outcome.client

    @property
    def topic(self) -> str:
        return f"T-{self.outcome.scenario}-{self.client}-{self.tag}"

    @property
    def group(self) -> str:
        return f"G-{self.outcome.scenario}-{self.client}-{self.tag}"

    # ---- what a scenario starts

    def make_topic(self, queues: int = QUEUES) -> None:
        make_topic(self.target.namesrv, self.topic, queues)

    def _name(self, kind: str) -> str:
        return f"{kind}{len(self._names)}-{self.outcome.scenario}-{self.client}-{self.tag}"

    def producer(self, **options: Any) -> str:
        """Its name."""
        name = self._name("P")
        fields = {"retries": 3, "selector": "", "transactional": False, **options}
        group = f"P{len(self._names)}-{self.group}"
        self._start("producer", name, group, fields)
        return name

    def consumer(
        self, topic: str = "", group: str = "", room: str = "", **options: Any
    ) -> Consumer:
        """`room`: the machine room that its name, and so its client id, says that it is in."""
        fields = {
            "kind": "push",
            "expression": "*",
            "sql": False,
            "from": "FIRST_OFFSET",
            "broadcast": False,
            "strategy": "average",
            "failures": 0,
            "topic": topic or self.topic,
            "broker": self.target.broker,
            **options,
        }
        name = self._name("C") + (f"-at-{room}" if room else "")
        group = group or self.group
        if not fields["broadcast"]:
            self.kill.watch(group, fields["topic"], self.outcome)
        self._start("consumer", name, group, fields)
        return Consumer(self, name)

    def _start(self, do: str, name: str, group: str, fields: dict[str, Any]) -> None:
        self._names.append(name)
        fields |= {"name": name, "group": group, "namesrv": self.target.namesrv}
        patiently(lambda: self.driver.call(do, **fields))

    # ---- sending

    def send(self, producer: str, how: str, *messages: dict[str, Any]) -> bool:
        """Whether all were acknowledged; what was, is noted."""
        expected = list(messages)
        try:
            results = self.driver.call(
                "send", producer=producer, how=how, topic=self.topic, messages=expected
            )
        except ClientError as error:
            results = [{"ok": False, "error": str(error)}]
        for number, message in enumerate(expected):
            result = results[min(number, len(results) - 1)]
            if not result["ok"]:
                self.failures.append(message["body"])
                self.outcome.error = result["error"]  # the last one, should the scenario fail
            elif how != "oneway":
                assert result["status"] == "SEND_OK", result
                inside = number if len(results) < len(expected) else 0  # of a batch
                ids = result.get("unique") or "", result.get("place") or ""
                sent = Sent(message["body"], result["queue"], result["offset"] + inside, *ids)
                self.sent.append(sent)
        return all(result["ok"] for result in results)

    def surely(self, send: Callable[[], bool]) -> None:
        """Again until it is acknowledged: on a busy machine leaders change without our doing."""
        deadline = time.monotonic() + PATIENCE_S
        while not send():
            assert time.monotonic() < deadline, f"sends go on failing: {self.outcome.error}"
            time.sleep(PACE_S)

    def several(self, step: Callable[[int], bool]) -> None:
        """`step(n)` sends; each is acknowledged."""
        for number in range(STEPS):
            self.surely(partial(step, number))

    def traffic(self, step: Callable[[int], bool]) -> None:
        """`step(n)` sends, and the leader is killed meanwhile: some are acknowledged before
        that, some after it, and between them nobody waits for the outcome."""
        self.several(step)
        self.strike()
        number = STEPS
        while not self.kill.over.is_set():
            step(number)
            number += 1
            time.sleep(PACE_S)
        self.kill.wait_over()
        self.several(lambda more: step(number + more))

    def strike(self) -> None:
        """All before this was right."""
        self.outcome.before = True
        self._struck = True
        self.kill.arrive()

    # ---- what must be true

    def check_delivered(self, *consumers: Consumer, bodies: set[str] | None = None) -> None:
        """Every acknowledged message came to one of them, at the place that its sender was told;
        nothing came that was not sent. Repeats are counted."""
        expected = {sent.body for sent in self.sent} if bodies is None else bodies

        reported = {(s.body, s.queue, s.offset) for s in self.sent if s.body in expected}

        def given() -> list[Delivery]:
            return [d for consumer in consumers for d in consumer.deliveries]

        def all_came() -> bool:
            # A message that was tried again may have come from where it was stored before.
            came = given()
            positions = {(d["body"], d["queue"], d["offset"]) for d in came}
            return reported <= positions and expected <= {d["body"] for d in came}

        self.driver.wait(all_came, PATIENCE_S)
        deliveries = given()
        self.count_repeats(deliveries)
        positions: dict[str, set[tuple[int, int]]] = {}
        for d in deliveries:
            positions.setdefault(d["body"], set()).add((d["queue"], d["offset"]))
        missing = sorted(expected - set(positions))
        self.outcome.lost += len(missing)
        assert not missing, f"{len(missing)} acknowledged, not delivered: {missing[:8]}"
        stray = set(positions) - {sent.body for sent in self.sent} - set(self.failures)
        assert not stray, f"never sent: {sorted(stray)[:8]}"
        for sent in self.sent:
            if sent.body in expected:
                where = positions[sent.body]
                assert (sent.queue, sent.offset) in where, (sent, where)

    def count_repeats(self, deliveries: list[Delivery]) -> None:
        """Deliveries of one place beyond the first, and places of one body beyond the first."""
        positions = Counter((d["body"], d["queue"], d["offset"]) for d in deliveries)
        self.outcome.redelivered += sum(positions.values()) - len(positions)
        self.outcome.stored_twice += len(positions) - len({body for body, _, _ in positions})

    def check_committed(self, *consumers: Consumer) -> None:
        """Their group commits the ends of all queues, exactly, and keeps to that when they stop."""
        self.wait_committed(self.group)
        for consumer in consumers:
            consumer.stop()
        self.wait_committed(self.group)

    def wait_committed(self, group: str) -> None:
        def missing() -> dict[Any, tuple[int | None, int]]:
            at = ends(self.target.namesrv, self.topic)
            result = committed(self.target.namesrv, group, self.topic)
            return {
                q: (result.get(q), end) for q, end in at.items() if end and result.get(q) != end
            }

        wait_until(lambda: not missing(), missing, patience_s=PATIENCE_S, pause_s=ASKING_PACE_S)

    # ---- the end

    def perform(self, work: Callable[["Run"], None]) -> None:
        """The scenario, from beginning to end; its outcome says how it went."""
        began = time.monotonic()
        try:
            work(self)
            assert self._struck, "a scenario without a kill"
            self.outcome.after = True
            self.outcome.error = ""
        except Exception as error:  # a failed scenario, whatever it is: the figures tell of it
            self.outcome.error = f"{type(error).__name__}: {error}"
        finally:
            if not self._struck:
                self.kill.leave()
            self.outcome.acknowledged = len(self.sent)
            self.outcome.unknown = len(self.failures)
            self.outcome.seconds = round(time.monotonic() - began, 1)
            self._stop_all()

    def _stop_all(self) -> None:
        for name in reversed(self._names):
            try:
                self.driver.call("stop", name=name)
            except ClientError:
                pass  # it was stopped by the scenario, or never came up
            except AssertionError as error:  # the whole client is gone
                self.outcome.after = False
                self.outcome.error = self.outcome.error or str(error)
