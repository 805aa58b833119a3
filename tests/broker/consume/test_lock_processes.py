"""Three real processes and a consumer in a fourth: it dies together with the leader."""

import asyncio
import re
import signal
import subprocess
import sys
from typing import ClassVar

import orjson
import pytest

from raftmq.broker.consume.queue_locks import GONE
from raftmq.remoting.codes import RequestCode
from tests.broker.replication.test_refill_processes import Processes

LIFETIME_MS = 6_000
BODY = {
    "consumerGroup": "cg",
    "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}],
}
CONSUMER = """
import asyncio, sys
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand

async def main():
    client = RemotingClient()
    while True:
        request = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, None, sys.argv[2].encode())
        print((await client.invoke(sys.argv[1], request, 60_000)).body.decode(), flush=True)
        await asyncio.sleep(0.2)

asyncio.run(main())
"""


class LockingProcesses(Processes):
    durations: ClassVar = Processes.durations | {"queue_lock": LIFETIME_MS}


def started(*arguments):
    command = [sys.executable, "-c", CONSUMER, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
async def test_locks_of_a_consumer_killed_with_the_leader_expire_as_usual(
    tmp_path,
):
    async with LockingProcesses(tmp_path) as processes:
        first = await processes.leader()
        await processes.send(first, "T", b"a topic to lock a queue of")
        address = f"127.0.0.1:{processes.ports[first]}"
        body = orjson.dumps(BODY | {"clientId": "A"}).decode()
        consumer = started(address, body)
        with consumer:
            try:
                said = await asyncio.to_thread(consumer.stdout.readline)
                assert '"queueId":0' in said, said
                # All have applied the grant; a replica that had not would count it from later.
                applied = int((await processes.info(first))["raftAppliedIndex"])
                await processes.until(
                    lambda infos: all(
                        int(info.get("raftAppliedIndex", -1)) >= applied for info in infos.values()
                    )
                )
                processes.end(first, signal.SIGKILL)  # before it can count the other as gone
            finally:
                consumer.kill()
        second = await processes.leader()
        waiting = orjson.dumps(BODY | {"clientId": "B"})
        async with asyncio.timeout(120):
            while True:
                answer = await processes.ask(second, RequestCode.LOCK_BATCH_MQ, None, waiting)
                if answer.code == 0 and orjson.loads(answer.body)["lockOKMQSet"]:
                    break
                await asyncio.sleep(0.05)
        ends = re.findall(r"locks_end count=1 age_ms=(\d+) led_ms=(-?\d+)", processes.log(second))
        (age_ms, led_ms), *_ = ((int(age), int(led)) for age, led in ends)
        assert age_ms > LIFETIME_MS * GONE
        assert age_ms > led_ms, "it was counted only from when the new leader led"
