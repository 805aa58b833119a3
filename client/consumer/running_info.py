"""ConsumerRunningInfo: a consumer's answer to an administrator (307). Pure except for the state it
reads."""

from __future__ import annotations

import time
from collections.abc import Mapping

from raftmq.remoting.codes import MQ_VERSION
from raftmq.remoting.fast_json import dumps

from ..message import MessageQueue
from .membership import Membership


def running_info(
    membership: Membership, offsets: Mapping[MessageQueue, int], orderly: bool
) -> bytes:
    """Return the body in the form Java readers expect (queue objects as map keys). `offsets` are
    what has been or will be committed."""
    now_ms = time.time() * 1000
    queues = {}
    locks = membership.locks
    for queue, worker in membership.workers.items():
        cached = worker.process_queue
        lock_age_ms = None if locks is None else locks.age_ms(queue)
        queues[queue] = {
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
                "PROP_NAMESERVER_ADDR": ";".join(membership.instance.name_servers.addresses),
                "PROP_CONSUME_TYPE": membership.consume_type,
                "PROP_CLIENT_VERSION": str(MQ_VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(membership.started_ms),
                "PROP_CONSUMEORDERLY": "true" if orderly else "false",
            },
            "statusTable": {},
            "subscriptionSet": [s.to_json() for s in membership.subscriptions.values()],
            "userConsumerInfo": {},
        }
    )
