"""The same verbs for programs without an event loop: one background thread runs it.

Every method blocks until it is done and may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from client.consumer import ConsumerConfig, PushConsumer
from client.errors import ClientClosed
from client.message import ConsumeResult, Message, MessageExt, MessageQueue, SendResult
from client.producer import Producer, Selector
from client.sending import SendConfig
from client.subscription import ALL

T = TypeVar("T")
BlockingListener = Callable[[list[MessageExt]], ConsumeResult | None]


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
        """Raises what `work` raises; ClientClosed when the thread is not running."""
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


class BlockingProducer:
    """`Producer` with blocking calls."""

    def __init__(
        self, group: str, namesrv: str | Sequence[str], *, config: SendConfig | None = None
    ) -> None:
        self._producer = Producer(group, namesrv, config=config)
        self._thread = LoopThread(f"producer {group}")

    def __enter__(self) -> BlockingProducer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

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


class BlockingConsumer:
    """`PushConsumer` whose listener blocks: it runs in a pool of `threads` threads."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: BlockingListener,
        *,
        config: ConsumerConfig | None = None,
        threads: int = 8,
    ) -> None:
        self._listener = listener
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"listener {group}")
        self._consumer = PushConsumer(group, namesrv, self._listen, config=config)
        self._thread = LoopThread(f"consumer {group}")

    def __enter__(self) -> BlockingConsumer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Before `start`."""
        self._consumer.subscribe(topic, expression)

    def start(self) -> None:
        self._thread.start()
        self._thread.run(self._consumer.start())

    def commit(self) -> dict[MessageQueue, int]:
        return self._thread.run(self._consumer.commit())

    def stop(self) -> None:
        self._thread.run(self._consumer.stop())
        self._thread.stop()
        self._pool.shutdown()

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._listener, messages)
