"""Blocking versions of the clients, with an event loop in a background thread.

Every method blocks until it is done and may be called from any thread. The methods are those of the
async clients (client.hosted), with the same parameters, results and errors. A stopped
BlockingConsumer, BlockingLitePullConsumer or BlockingTransactionProducer does not start again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from threading import Thread
from typing import Any, Protocol

from .consumer.consume_service import ListenerAnswer
from .consumer.lite_pull_consumer import LitePullConfig, LitePullConsumer
from .consumer.offsets import ConsumeFrom
from .consumer.pull_consumer import PullConsumer
from .consumer.push_consumer import ConsumerConfig, PushConsumer
from .consumer.simple_consumer import SimpleConsumer
from .hosted import (
    Hosted,
    blocking,
    entered_blocking,
    in_pool,
    left_blocking,
    on_loop,
    started,
    stopped,
)
from .instance import InstanceConfig
from .message import Message, MessageExt, MessageQueue
from .producer.producer import Producer
from .producer.sender import SendConfig
from .producer.transaction import TransactionProducer, TransactionState
from .subscription import ALL

BlockingListener = Callable[[list[MessageExt]], ListenerAnswer]


class BlockingProducer:
    """`Producer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        config: SendConfig | None = None,
        instance_config: InstanceConfig | None = None,
        audit_topic: str = "",
    ) -> None:
        producer = Producer(
            group, namesrv, config=config, instance_config=instance_config, audit_topic=audit_topic
        )
        self._hosted = Hosted(producer, f"producer {group}")

    __enter__, __exit__, start, stop = entered_blocking, left_blocking, started, stopped
    send = blocking(Producer.send)
    send_batch = blocking(Producer.send_batch)
    send_oneway = blocking(Producer.send_oneway)
    send_split = blocking(Producer.send_split)
    request = blocking(Producer.request)
    reply = blocking(Producer.reply)
    recall = blocking(Producer.recall)
    queues = blocking(Producer.queues)


class BlockingTransactionListener(Protocol):
    """`TransactionListener` with blocking methods, which run in threads."""

    def execute(self, message: Message, arg: Any) -> TransactionState: ...

    def check(self, message: MessageExt) -> TransactionState: ...


class PooledListener:
    """A transaction listener that runs a blocking listener in a pool of threads."""

    def __init__(self, listener: BlockingTransactionListener, pool: ThreadPoolExecutor) -> None:
        self._execute = in_pool(pool, listener.execute)
        self._check = in_pool(pool, listener.check)

    def execute(self, message: Message, arg: Any) -> Awaitable[TransactionState]:
        return self._execute(message, arg)

    def check(self, message: MessageExt) -> Awaitable[TransactionState]:
        return self._check(message)


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
        audit_topic: str = "",
    ) -> None:
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"transactions {group}")
        pooled = PooledListener(listener, pool)
        common: dict[str, Any] = dict(config=config, instance_config=instance_config)
        producer = TransactionProducer(group, namesrv, pooled, audit_topic=audit_topic, **common)
        self._hosted: Hosted[TransactionProducer] = Hosted(
            producer, f"producer {group}", pool, once=True
        )

    send_in_transaction = blocking(TransactionProducer.send_in_transaction)


class BlockingConsumer:
    """`PushConsumer` with a blocking listener in a pool of `threads` threads. At most this many
    calls run at once, so no running call waits for a thread."""

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
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"listener {group}")
        config = config or ConsumerConfig()
        config = replace(config, listeners_max=min(config.listeners_max or threads, threads))
        consumer = PushConsumer(
            group,
            namesrv,
            lambda messages: pool.submit(copy_context().run, listener, messages),
            config=config,
            instance_config=instance_config,
        )
        self._hosted = Hosted(consumer, f"consumer {group}", pool, once=True)

    __enter__, __exit__, start = entered_blocking, left_blocking, started
    commit = blocking(PushConsumer.commit)
    seek = blocking(PushConsumer.seek)
    pause = on_loop(PushConsumer.pause)
    resume = on_loop(PushConsumer.resume)

    def stop(self) -> None:
        """Do as `PushConsumer.stop`. In the listener a separate thread does it."""
        if self._hosted.client.called_by_listener:
            Thread(target=self._hosted.stop, name="stop").start()
        else:
            self._hosted.stop()

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Subscribe to `topic`; to be called before `start`."""
        self._hosted.client.subscribe(topic, expression, expression_type)

    @property
    def client_id(self) -> str:
        return self._hosted.client.client_id

    @property
    def timed_out(self) -> int:
        """Return `PushConsumer.timed_out`."""
        return self._hosted.client.timed_out


class BlockingLitePullConsumer:
    """`LitePullConsumer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        config: LitePullConfig | None = None,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        consumer = LitePullConsumer(group, namesrv, config=config, instance_config=instance_config)
        self._hosted = Hosted(consumer, f"lite pull {group}", once=True)

    __enter__, __exit__, start, stop = entered_blocking, left_blocking, started, stopped
    assign = blocking(LitePullConsumer.assign)
    fetch_queues = blocking(LitePullConsumer.fetch_queues)
    poll = blocking(LitePullConsumer.poll, LitePullConsumer.restore)
    commit = blocking(LitePullConsumer.commit)
    committed = blocking(LitePullConsumer.committed)
    offset_for = blocking(LitePullConsumer.offset_for)
    seek = blocking(LitePullConsumer.seek)
    seek_to_begin = blocking(LitePullConsumer.seek_to_begin)
    seek_to_end = blocking(LitePullConsumer.seek_to_end)
    pause = on_loop(LitePullConsumer.pause)
    resume = on_loop(LitePullConsumer.resume)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        return self._hosted.client.assignment

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Subscribe to `topic`; to be called before `start`."""
        self._hosted.client.subscribe(topic, expression, expression_type)


class BlockingSimpleConsumer:
    """`SimpleConsumer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        consumer = SimpleConsumer(
            group, namesrv, consume_from=consume_from, instance_config=instance_config
        )
        self._hosted = Hosted(consumer, f"simple {group}")

    __enter__, __exit__, start, stop = entered_blocking, left_blocking, started, stopped
    subscribe = blocking(SimpleConsumer.subscribe)
    receive = blocking(SimpleConsumer.receive)
    ack = blocking(SimpleConsumer.ack)
    change_invisible = blocking(SimpleConsumer.change_invisible)


class BlockingPullConsumer:
    """`PullConsumer` with blocking calls."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        consumer = PullConsumer(group, namesrv, instance_config=instance_config)
        self._hosted = Hosted(consumer, f"pull {group}")

    __enter__, __exit__, start, stop = entered_blocking, left_blocking, started, stopped
    queues = blocking(PullConsumer.queues)
    pull = blocking(PullConsumer.pull)
    seek = on_loop(PullConsumer.seek)
    seek_to_committed = blocking(PullConsumer.seek_to_committed)
    commit = blocking(PullConsumer.commit)
    committed = blocking(PullConsumer.committed)
    min_offset = blocking(PullConsumer.min_offset)
    max_offset = blocking(PullConsumer.max_offset)
    offset_for = blocking(PullConsumer.offset_for)

    def fetch(
        self, queue: MessageQueue, count_max: int = 32, expression: str = ALL, wait_ms: int = 0
    ) -> list[MessageExt]:
        """Do as `PullConsumer.fetch`, with TAG expressions only."""
        consumer = self._hosted.client
        fetched = consumer.fetch(queue, count_max, expression, wait_ms=wait_ms)
        return self._hosted.run(fetched, consumer.restore)
