"""Send messages singly for some seconds, then print the longest wait and the outcomes.

Kill the leader during the run (mqcluster kill --dir DIR leader).
"""

import asyncio
import os
import sys
import time

from raftmq import Message, Producer, SendFailed, SendOutcomeUnknown

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0


async def main() -> None:
    acknowledged = failed = unknown = 0
    longest_s = 0.0
    async with Producer("watcher", NAMESRV) as producer:
        end = time.monotonic() + SECONDS
        last = time.monotonic()
        while last < end:
            try:
                await producer.send(Message("Ticks", b"tick"))
                acknowledged += 1
            except SendFailed:
                failed += 1
            except SendOutcomeUnknown:
                unknown += 1
            now = time.monotonic()
            if acknowledged + failed + unknown > 1:  # the first send connects, and creates a topic
                longest_s = max(longest_s, now - last)
            last = now
    print(f"{acknowledged} acknowledged, {failed} failed, {unknown} unknown")
    print(f"longest wait for an answer: {longest_s * 1000:.0f} ms")


asyncio.run(main())
