"""Publishing and reading as the history has them, over a stand-in for the client's context.

Long only because the package nats-py is not there otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.chaos.cluster.clusterfile import save_state
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.chaos.history.files import HistoryWriter, read_history
from raftmq.client import ClientError, Message, MessageQueue, SendResult

pytest.importorskip("nats", reason="needs bench/peers/requirements.txt")
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError, NoStreamResponseError

from raftmq.chaos.nats import workload
from raftmq.chaos.nats.workload import ID, Publisher

pytestmark = pytest.mark.long

QUEUE = MessageQueue("Chaos", "", 0)


class Context:
    """Answers publishes with what it is given, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.headers: list[dict[str, str]] = []

    async def publish(self, subject: str, body: bytes, headers: dict[str, str], **_: object) -> Any:
        self.headers.append(headers)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stream=subject, seq=answer)


@pytest.mark.parametrize(
    ("answers", "timeout_ms", "offset", "unknown"),
    [
        ([7], 10_000, 7, None),
        ([NoStreamResponseError(), 8], 10_000, 8, None),  # nobody took it: tried again
        ([NoStreamResponseError()], 0, None, False),
        ([NatsTimeout()], 10_000, None, True),
        ([APIError(503, "no quorum")], 10_000, None, True),
        ([OSError("gone")], 10_000, None, True),
    ],
)
async def test_what_nobody_took_certainly_failed_and_the_rest_is_unknown(
    answers: Sequence[Any], timeout_ms: int, offset: int | None, unknown: bool | None
) -> None:
    outcome: asyncio.Future[tuple[SendResult | None, ClientError | None]] = asyncio.Future()
    context = Context(*answers)
    publisher = Publisher(context)
    message = Message("Chaos", b"x", unique_key="one")
    publisher.send_nowait(message, lambda *both: outcome.set_result(both), timeout_ms, QUEUE)
    result, error = await asyncio.wait_for(outcome, 60)
    assert (result.queue_offset if result else None) == offset
    assert (error.outcome_unknown if error else None) == unknown
    assert context.answers == []
    assert {headers[ID] for headers in context.headers} == {"one"}
    await publisher.close()


async def test_what_is_no_outcome_is_a_failure_of_the_run_and_leaves_the_send_unknown() -> None:
    outcome: asyncio.Future[tuple[SendResult | None, ClientError | None]] = asyncio.Future()
    publisher = Publisher(Context(ZeroDivisionError("a mistake")))
    message = Message("Chaos", b"x", unique_key="one")
    publisher.send_nowait(message, lambda *both: outcome.set_result(both), 10_000, QUEUE)
    _, error = await asyncio.wait_for(outcome, 60)
    assert error is not None and error.outcome_unknown
    assert isinstance(publisher.failure, ZeroDivisionError)


class Readers:
    """Consumers of a stream whose replicas hold different messages; each new one is elsewhere."""

    def __init__(self, held: dict[str, list[tuple[int, str]]]) -> None:
        self._held = held
        self._made = 0

    async def pull_subscribe(self, subject: str, stream: str, config: Any) -> Any:
        names = sorted(self._held)
        name = names[self._made % len(names)]
        self._made += 1
        left = list(self._held[name])

        async def consumer_info() -> Any:
            where = SimpleNamespace(leader=name)
            return SimpleNamespace(name=f"c{self._made}", cluster=where, num_pending=len(left))

        async def fetch(count: int, **_: object) -> list[Any]:
            taken, left[:] = left[:2], left[2:]
            return [
                SimpleNamespace(
                    data=b"x",
                    headers={ID: message},
                    metadata=SimpleNamespace(sequence=SimpleNamespace(stream=offset)),
                )
                for offset, message in taken
            ]

        return SimpleNamespace(consumer_info=consumer_info, fetch=fetch)

    async def delete_consumer(self, stream: str, name: str) -> None:
        pass


async def test_every_replica_is_read_and_one_that_differs_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(replicas=3, namesrv="none")
    save_state(tmp_path, plan(shape, {}, "127.0.0.1", range(20_000, 20_000 + ports_needed(shape))))
    whole = [(1, "a"), (2, "b"), (3, "c")]
    readers = Readers({"n0": whole, "n1": whole[:2], "n2": whole})

    async def close() -> None:
        pass

    async def connect(_: Path) -> Any:
        return SimpleNamespace(jetstream=lambda: readers, close=close)

    monkeypatch.setattr(workload, "connect", connect)
    path = tmp_path / "history.jsonl"
    with HistoryWriter(path) as history:
        found = await workload.read_replicas(tmp_path, history, "Chaos", 60)
    assert found["n0"] == found["n2"] != found["n1"]
    written = read_history(path)
    assert {event.process for event in written.consumes} == {f"reader-n{n}" for n in range(3)}
    assert sum(len(event.offsets) for event in written.consumes) == 8
    (replicas,) = written.replicas
    assert replicas.parts.keys() == {"n0", "n1", "n2"}
    assert replicas.errors == {}
