"""Blocking versions of the clients, for programs without an event loop: a background thread runs
one.

Every method blocks until it is done and may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from raftmq.client.batch import SPLIT_SIZE_BYTES
from raftmq.client.consumer import ConsumerConfig, PushConsumer
from raftmq.client.errors import ClientClosed
from raftmq.client.instance import InstanceConfig
from raftmq.client.listen import ListenerAnswer
from raftmq.client.litepull import LitePullConfig, LitePullConsumer
from raftmq.client.message import Message, MessageExt, MessageQueue, SendResult
from raftmq.client.producer import Producer, Selector
from raftmq.client.pullconsumer import PullConsumer
from raftmq.client.sending import SendConfig
from raftmq.client.subscription import ALL
from raftmq.client.transaction import TransactionProducer, TransactionResult, TransactionState

T = TypeVar("T")
BlockingListener = Callable[[list[MessageExt]], ListenerAnswer]


class LoopThread:
    """A thread that runs an event loop; `run` executes a coroutine there and waits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        assert self._thread is None, "already started"
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name=self._name, daemon=True
        )
        self._thread.start()
        ready.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait. Raises what `work` raises; ClientClosed if the thread is
        not running."""
        loop = self._loop
        if loop is None:
            work.close()
            raise ClientClosed
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _serve(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            ready.set()
            loop.run_forever()


class Blocking(ABC):
    """Base of the blocking clients, which may be used with `with`."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class BlockingProducer(Blocking):
    """`Producer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        config: SendConfig | None = None,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        self._instance_config = instance_config
        self._producer = self._new(group, namesrv, config)
        self._thread = LoopThread(f"producer {group}")

    def _new(self, group: str, namesrv: str | Sequence[str], config: SendConfig | None) -> Producer:
        return Producer(group, namesrv, config=config, instance_config=self._instance_config)

    def start(self) -> None:
        self._thread.start()
        self._thread.run(self._producer.start())

    def stop(self) -> None:
        self._thread.run(self._producer.stop())
        self._thread.stop()

    def send(
        self,
        message: Message,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: Selector[Any] | None = None,
        arg: Any = None,
    ) -> SendResult:
        return self._thread.run(self._producer.send(message, timeout_ms, queue, selector, arg))

    def send_batch(
        self,
        messages: Sequence[Message],
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        return self._thread.run(self._producer.send_batch(messages, timeout_ms, queue))

    def send_oneway(
        self, message: Message, timeout_ms: int = 3000, queue: MessageQueue | None = None
    ) -> None:
        self._thread.run(self._producer.send_oneway(message, timeout_ms, queue))

    def send_split(
        self,
        messages: Sequence[Message],
        size_bytes_max: int = SPLIT_SIZE_BYTES,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> list[SendResult]:
        return self._thread.run(
            self._producer.send_split(messages, size_bytes_max, timeout_ms, queue)
        )

    def request(
        self, message: Message, timeout_ms: int = 3000, queue: MessageQueue | None = None
    ) -> MessageExt:
        return self._thread.run(self._producer.request(message, timeout_ms, queue))

    def reply(self, request: MessageExt, body: bytes, timeout_ms: int = 3000) -> SendResult:
        """Answer a consumed request; may be called from a BlockingConsumer's listener."""
        return self._thread.run(self._producer.reply(request, body, timeout_ms))

    def recall(self, topic: str, recall_handle: str, timeout_ms: int = 3000) -> str:
        return self._thread.run(self._producer.recall(topic, recall_handle, timeout_ms))


class BlockingTransactionListener(Protocol):
    """`TransactionListener` whose methods block; they run in threads."""

    def execute(self, message: Message, arg: Any) -> TransactionState: ...

    def check(self, message: MessageExt) -> TransactionState: ...


class BlockingTransactionProducer(BlockingProducer):
    """`TransactionProducer` with blocking calls; its listener runs in a pool of `threads`."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: BlockingTransactionListener,
        *,
        config: SendConfig | None = None,
        instance_config: InstanceConfig | None = None,
        threads: int = 8,
    ) -> None:
        self._listener = listener
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"transactions {group}")
        super().__init__(group, namesrv, config=config, instance_config=instance_config)

    def _new(
        self, group: str, namesrv: str | Sequence[str], config: SendConfig | None
    ) -> TransactionProducer:
        return TransactionProducer(
            group, namesrv, self, config=config, instance_config=self._instance_config
        )

    def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> TransactionResult:
        assert isinstance(self._producer, TransactionProducer)
        return self._thread.run(self._producer.send_in_transaction(message, arg, timeout_ms, queue))

    def stop(self) -> None:
        super().stop()
        self._pool.shutdown()

    async def execute(self, message: Message, arg: Any) -> TransactionState:
        """Run the listener in a thread; the producer calls this on its loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._listener.execute, message, arg)

    async def check(self, message: MessageExt) -> TransactionState:
        """Run the listener in a thread; the producer calls this on its loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._listener.check, message)


class BlockingConsumer(Blocking):
    """`PushConsumer` whose listener blocks: it runs in a pool of `threads` threads. At most as many
    calls run at once, so none that counts as running waits for a thread."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: BlockingListener,
        *,
        config: ConsumerConfig | None = None,
        instance_config: InstanceConfig | None = None,
        threads: int = 8,
    ) -> None:
        self._listener = listener
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"listener {group}")
        config = config or ConsumerConfig()
        limit = min(config.listeners_max or threads, threads)
        config = replace(config, listeners_max=limit)
        self._consumer = PushConsumer(
            group, namesrv, self._listen, config=config, instance_config=instance_config
        )
        self._thread = LoopThread(f"consumer {group}")

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Subscribe to `topic`; to be called before `start`."""
        self._consumer.subscribe(topic, expression, expression_type)

    def start(self) -> None:
        self._thread.start()
        self._thread.run(self._consumer.start())

    def commit(self) -> dict[MessageQueue, int]:
        return self._thread.run(self._consumer.commit())

    @property
    def timed_out(self) -> int:
        """Return `PushConsumer.timed_out`."""
        return self._consumer.timed_out

    def stop(self) -> None:
        self._thread.run(self._consumer.stop())
        self._thread.stop()
        self._pool.shutdown()

    async def _listen(self, messages: list[MessageExt]) -> ListenerAnswer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._listener, messages)


class BlockingLitePullConsumer(Blocking):
    """`LitePullConsumer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        config: LitePullConfig | None = None,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        self._consumer = LitePullConsumer(
            group, namesrv, config=config, instance_config=instance_config
        )
        self._thread = LoopThread(f"lite pull {group}")

    def start(self) -> None:
        self._thread.start()
        self._thread.run(self._consumer.start())

    def stop(self) -> None:
        self._thread.run(self._consumer.stop())
        self._thread.stop()

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        return self._consumer.assignment

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Subscribe to `topic`; to be called before `start`."""
        self._consumer.subscribe(topic, expression, expression_type)

    def assign(self, queues: Sequence[MessageQueue], expression: str = ALL) -> None:
        self._thread.run(self._consumer.assign(queues, expression))

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._thread.run(self._consumer.fetch_queues(topic))

    def poll(self, timeout_ms: int = 5_000, count_max: int = 0) -> list[MessageExt]:
        return self._thread.run(self._consumer.poll(timeout_ms, count_max))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> dict[MessageQueue, int]:
        return self._thread.run(self._consumer.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._thread.run(self._consumer.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._thread.run(self._consumer.seek(queue, offset))

    def pause(self, queues: Sequence[MessageQueue]) -> None:
        self._thread.run(_called(self._consumer.pause, queues))

    def resume(self, queues: Sequence[MessageQueue]) -> None:
        self._thread.run(_called(self._consumer.resume, queues))


class BlockingPullConsumer(Blocking):
    """`PullConsumer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        self._consumer = PullConsumer(group, namesrv, instance_config=instance_config)
        self._thread = LoopThread(f"pull {group}")

    def start(self) -> None:
        self._thread.start()
        self._thread.run(self._consumer.start())

    def stop(self) -> None:
        self._thread.run(self._consumer.stop())
        self._thread.stop()

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._thread.run(self._consumer.queues(topic))

    def fetch(
        self, queue: MessageQueue, count_max: int = 32, expression: str = ALL, wait_ms: int = 0
    ) -> list[MessageExt]:
        return self._thread.run(self._consumer.fetch(queue, count_max, expression, wait_ms=wait_ms))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._thread.run(_called(self._consumer.seek, queue, offset))

    def commit(self, queue: MessageQueue, offset: int | None = None) -> None:
        self._thread.run(self._consumer.commit(queue, offset))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._thread.run(self._consumer.committed(queue))


async def _called(function: Callable[..., None], *arguments: Any) -> None:
    """Call `function` on the loop, to which its objects belong."""
    function(*arguments)
