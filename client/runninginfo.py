"""ConsumerRunningInfo: a consumer's answer to an administrator (307). Pure except for the state it
reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from raftmq.client.instance import ClientInstance
from raftmq.client.locks import QueueLocks
from raftmq.client.message import MessageQueue
from raftmq.client.pull import QueueWorker
from raftmq.client.subscription import Subscription
from raftmq.remoting.codes import MQ_VERSION
from raftmq.remoting.fastjson import MessageQueue as WireQueue
from raftmq.remoting.fastjson import dumps


class Told(Protocol):
    """The state of a consumer that the report covers."""

    consume_type: str
    started_ms: int

    @property
    def offsets(self) -> dict[MessageQueue, int]: ...

    @property
    def workers(self) -> Mapping[MessageQueue, QueueWorker]: ...

    @property
    def locks(self) -> QueueLocks | None: ...

    @property
    def orderly(self) -> bool: ...

    @property
    def instance(self) -> ClientInstance: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...


def running_info(consumer: Told) -> bytes:
    """Return the body in the form Java readers expect (queue objects as map keys)."""
    now_ms = time.time() * 1000
    offsets = consumer.offsets
    queues = {}
    for queue, worker in consumer.workers.items():
        cached = worker.process_queue
        locks = consumer.locks
        lock_age_ms = None if locks is None else locks.age_ms(queue)
        queues[WireQueue(queue.topic, queue.broker_name, queue.queue_id)] = {
            "cachedMsgCount": cached.cached_count,
            "cachedMsgMinOffset": cached.committable,
            "cachedMsgMaxOffset": cached.next_pull,
            "cachedMsgSizeInMiB": cached.cached_bytes >> 20,
            "commitOffset": offsets.get(queue, -1),
            "droped": False,
            "lastConsumeTimestamp": round(worker.last_consumed_ms),
            "lastLockTimestamp": 0 if lock_age_ms is None else round(now_ms - lock_age_ms),
            "lastPullTimestamp": round(now_ms - worker.since_last_pull_ms),
            "locked": locks is not None and locks.valid(queue),
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
    return dumps(
        {
            "mqTable": queues,
            "properties": {
                "PROP_NAMESERVER_ADDR": ";".join(consumer.instance.name_servers.addresses),
                "PROP_CONSUME_TYPE": consumer.consume_type,
                "PROP_CLIENT_VERSION": str(MQ_VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
                "PROP_CONSUMEORDERLY": "true" if consumer.orderly else "false",
            },
            "statusTable": {},
            "subscriptionSet": [s.to_json() for s in consumer.subscriptions.values()],
            "userConsumerInfo": {},
        }
    )
