"""What RocketMQ 5's clients do at a proxy, whosever it is: `world` has its topics and groups."""

import pytest

from tests.interop.python5.sdk import SdkError
from tests.waiting import until

KINDS = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")


async def simple_consumer(world, sdk):
    """One receives by tag, hides one message, acknowledges the others, and then that one."""
    await world.topic("T")
    await sdk.produce(topics=["T"])
    await sdk.subscribe(group="cg", topic="T", tag="a")
    sent = [await sdk.send(topic="T", body=f"m{n}", tag="a", key="k") for n in range(10)]
    await sdk.send(topic="T", body="other", tag="b")
    result = await sdk.received(10)
    assert sorted(one[1] for one in result) == [f"m{n}" for n in range(10)]
    assert {one[0] for one in result} == {one[0] for one in sent}
    assert all(one[2:] == ["a", {"from": "sdk"}] for one in result)
    await sdk.hide(message_id=result[0][0], seconds=1)
    for one in result[1:]:
        await sdk.ack(message_id=one[0])
    (again,) = await sdk.received(1)
    assert again[1] == result[0][1]
    await sdk.ack(message_id=again[0])
    with pytest.raises(SdkError):
        await sdk.send(topic="Nowhere", body="x")


async def push_consumers(world, sdk, *, recalls, asked_once=True):
    """They get every kind of message: in order, later, of ended and of orphaned transactions, and
    a failed one again. Go's client has no recall. What an orphan becomes may come twice unless it
    is asked about once."""
    for kind in KINDS:
        await world.topic(kind, kind=kind)
        await world.consumer_group(kind, consumeMessageOrderly=kind == "FIFO")
    # Node's client hangs if its settings are answered before the routes of all topics.
    await sdk.produce(topics=["TRANSACTION"])
    for kind in KINDS:
        await sdk.listen(group=kind, topic=kind)
    for body, end in (("committed", "commit"), ("gone", "rollback"), ("orphan", "")):
        await sdk.transact(topic="TRANSACTION", body=body, end=end)
    if recalls:
        _, _, handle = await sdk.send(topic="DELAY", body="recalled", delay_s=2)
        await sdk.recall(topic="DELAY", handle=handle)
    await sdk.send(topic="DELAY", body="later", delay_s=2)
    for n in range(12):
        await sdk.send(topic="FIFO", body=f"{n}", group=f"g{n % 2}")
    await sdk.send(topic="NORMAL", body="fail once")
    await sdk.send(topic="NORMAL", body="good")

    heard: list[str] = []

    async def all_is_heard():
        heard[:] = [one[0] for one in await sdk.heard()]
        expected = len(set(heard)) == 17 and heard.count("fail once") == 2
        return expected or len(heard) > 24

    await until(all_is_heard, lambda: heard, patience_s=60, pause_s=0.05)
    in_order = [int(body) for body in heard if body.isdigit()]
    assert [n for n in in_order if n % 2] == list(range(1, 12, 2))
    assert [n for n in in_order if not n % 2] == list(range(0, 12, 2))
    others = sorted(body for body in heard if not body.isdigit())
    if not asked_once:
        others = sorted([*set(others), "fail once"])
    assert others == ["committed", "fail once", "fail once", "good", "later", "orphan"], others
    requested = await sdk.checked()
    assert "orphan" in requested and "gone" not in requested
