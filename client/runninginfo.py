"""ConsumerRunningInfo (section 5.6): what a consumer tells an administrator who asks (307). Pure
but for the state it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client.instance import ClientInstance
from client.message import MessageQueue
from client.pull import QueueWorker
from client.subscription import Subscription
from remoting.codes import MQ_VERSION
from remoting.fastjson import MessageQueue as WireQueue
from remoting.fastjson import dumps


def running_info(
    instance: ClientInstance,
    started_ms: int,
    orderly: bool,
    subscriptions: Sequence[Subscription],
    workers: Mapping[MessageQueue, QueueWorker],
    offsets: Mapping[MessageQueue, int],
) -> bytes:
    """The body, in the form Java readers expect (queue objects as map keys)."""
    queues = {
        WireQueue(queue.topic, queue.broker_name, queue.queue_id): {
            "cachedMsgCount": worker.process_queue.cached_count,
            "cachedMsgMinOffset": worker.process_queue.committable,
            "cachedMsgMaxOffset": worker.process_queue.next_pull,
            "cachedMsgSizeInMiB": worker.process_queue.cached_bytes >> 20,
            "commitOffset": offsets.get(queue, -1),
            "droped": False,
            "lastConsumeTimestamp": 0,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": 0,
            "locked": False,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
        for queue, worker in workers.items()
    }
    return dumps(
        {
            "mqTable": queues,
            "properties": {
                "PROP_NAMESERVER_ADDR": ";".join(instance.name_servers.addresses),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CLIENT_VERSION": str(MQ_VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
                "PROP_CONSUMEORDERLY": "true" if orderly else "false",
            },
            "statusTable": {},
            "subscriptionSet": [subscription.to_json() for subscription in subscriptions],
            "userConsumerInfo": {},
        }
    )
