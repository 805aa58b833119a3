"""The pictures of docs/screenshots/: `make screenshots`, or `python -m tests.browser.screenshots`.

Two groups of three brokers with producers and consumers; the leader of the first is killed while
the page is looked at.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from raftmq.chaos.cluster.topology import Shape
from raftmq.client import ClientError, ConsumeResult, Message, MessageExt, Producer, PushConsumer
from tests.browser.chromium import ROOT, Browser, Page
from tests.browser.cluster import Running, running

DIRECTORY = ROOT / "docs" / "screenshots"
TOPICS = ("Orders", "Payments", "Shipments", "Invoices", "Refunds", "PriceChanges", "StockLevels")
WARM_UP_S = 60.0  # of traffic before the first picture: some points of each history
SENDS_PER_S = 120
DESKTOP, PHONE = (1280, 860), (380, 780)


async def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as position:
        async with (
            running(Path(position, "cluster"), Shape(groups=2)) as cluster,
            Browser(Path(position)) as browser,
        ):
            for topic in TOPICS:
                await cluster.topic(topic)
            async with traffic(cluster.cluster.state().namesrv):
                await take(cluster, browser, directory)
    print(f"written to {directory}")


async def take(cluster: Running, browser: Browser, directory: Path) -> None:
    page = await browser.open(f"{cluster.url}/", width=DESKTOP[0], height=DESKTOP[1])
    phone = await browser.open(f"{cluster.url}/", width=PHONE[0], height=PHONE[1], scale=2)
    await asyncio.sleep(WARM_UP_S)
    await page.screenshot(directory / "cluster.png")
    await page.colours(True)
    await page.screenshot(directory / "cluster-dark.png")
    await page.click("[data-do=transfer]")
    await settled(page)
    await page.screenshot(directory / "transfer.png")
    await page.key("Escape")
    await page.colours(False)
    await phone.screenshot(directory / "phone.png")

    await cluster.kill_leader()
    await page.until("document.querySelector('.replica.silent')")
    await page.until("document.querySelectorAll('.replica.leader').length == 2")
    await settled(page)
    await page.js("document.querySelector('.tiles').scrollIntoView({block: 'start'})")
    await page.js("scrollBy(0, -140)")
    await page.screenshot(directory / "failover.png")
    await phone.until("document.querySelector('.replica.silent')")
    await phone.js("document.querySelector('.failover').scrollIntoView({block: 'center'})")
    await settled(phone)
    await phone.screenshot(directory / "phone-failover.png")
    await page.goto(f"{cluster.url}/#/events")
    await page.until("document.querySelector('.failover') && document.querySelector('.events li')")
    await settled(page)
    await page.screenshot(directory / "events.png")

    for name, address, shown in (
        ("topics", "topics", ".rows .row"),
        ("consumers", "consumers/shipping", "section.card table"),
        ("messages", "messages?topic=Orders&tag=created", ".messages .row"),
        ("history", "history", ".plot canvas"),
        ("clients", "clients", "section.card"),
        ("operators", "audit", ".deeds li"),
    ):
        await page.goto(f"{cluster.url}/#/{address}")
        await page.until(f"document.querySelector({shown!r})")
        await settled(page)
        await page.screenshot(directory / f"{name}.png")
        await phone.goto(f"{cluster.url}/#/{address}")
        await phone.until(f"document.querySelector({shown!r})")
        await settled(phone)
        await phone.screenshot(directory / f"phone-{name}.png")
    await page.goto(f"{cluster.url}/#/messages?topic=Orders&by=key&key=order-100042")
    await page.click(".messages .row")
    await page.until("document.querySelector('.trace')")
    await settled(page)
    await page.screenshot(directory / "message.png")
    await page.goto(f"{cluster.url}/#/consumers/billing")
    await page.click("[data-do=reset]")
    await page.until("document.querySelector('dialog .outlook table')")
    await settled(page)
    await page.screenshot(directory / "reset.png")


async def settled(page: Page) -> None:
    """Transitions are over and what was asked for is shown."""
    await asyncio.sleep(1.2)
    await page.until("!document.querySelector('.loading')")


@contextlib.asynccontextmanager
async def traffic(namesrv: str) -> AsyncIterator[None]:
    """Producers, one consumer group that keeps up and one that does not."""

    async def work(_: list[MessageExt]) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async def slow_work(_: list[MessageExt]) -> ConsumeResult:
        await asyncio.sleep(0.25)
        return ConsumeResult.SUCCESS

    shipping = consumer("shipping", namesrv, work)
    billing = consumer("billing", namesrv, slow_work)
    async with Producer("shop", namesrv) as producer, shipping, billing:
        sending = asyncio.create_task(send_for_ever(producer))
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def consumer(
    group: str, namesrv: str, work: Callable[[list[MessageExt]], Awaitable[ConsumeResult]]
) -> PushConsumer:
    made = PushConsumer(group, namesrv, work)
    for topic in ("Orders", "Payments"):
        made.subscribe(topic, "*")
    return made


async def send_for_ever(producer: Producer) -> None:
    number = 100_000
    due = time.monotonic()
    while True:
        number += 1
        topic = TOPICS[number % 2]
        body = b'{"order": %d, "customer": "C-%04d", "total": "%d.90 EUR"}' % (
            number, number * 7 % 9000, number % 311,
        )  # fmt: skip
        message = Message(topic, body, tags="created", keys=f"order-{number}")
        with contextlib.suppress(ClientError):  # the leader is being killed: the next one gets in
            await producer.send(message)
        due = max(due + 1 / SENDS_PER_S, time.monotonic() - 1)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    asyncio.run(main())
