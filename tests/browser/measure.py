"""Measure how long the dashboard takes to show topics: `python -m tests.browser.measure [TOPICS
…]`.

From the start of the navigation in an empty browser cache to the frame after the last row is in the
page: name server, network, page and layout. The list is the name server's own, so the brokers
(small servers here) have no part in it. The page shows the first 1,000 and loads more on demand.
"""

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

from raftmq.remoting.registration import TopicConfig
from tests.browser.chromium import Browser
from tests.namesrv.http.nodes import FakeCluster, replicas

ROUNDS = 9
PAGE = 1000
SHOWN = """new Promise(done => {
  const look = () => {
    if (document.querySelectorAll('.rows .row').length >= %d)
      requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    else requestAnimationFrame(look);
  };
  look();
})"""


async def main() -> None:
    counts = [int(text) for text in sys.argv[1:]] or [1000]
    with tempfile.TemporaryDirectory() as position:
        async with Browser(Path(position)) as browser:
            for count in counts:
                took = [await one(browser, count) for _ in range(ROUNDS)]
                print(
                    f"{count} topics, {min(count, PAGE)} rows shown: median of {ROUNDS} "
                    f"{statistics.median(took):.0f} ms ({min(took):.0f} to {max(took):.0f})"
                )


async def one(browser: Browser, count: int) -> float:
    """Milliseconds."""
    async with FakeCluster(*replicas()) as cluster:
        topics = [TopicConfig(f"topic-{number:06}", 8, 8, 6) for number in range(count)]
        cluster.register(cluster.nodes["n0"], topics)
        page = await browser.open("about:blank")
        await page.goto(f"{cluster.url}/#/topics")
        took = float(await page.js(SHOWN % min(count, PAGE)))
        await page.close()
        return took


if __name__ == "__main__":
    asyncio.run(main())
