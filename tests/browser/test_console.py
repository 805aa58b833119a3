"""The console in a real browser, over a real broker: what an operator changes with it."""

from pathlib import Path

from raftmq.chaos.cluster.topology import Shape
from tests.browser.chromium import Browser, Page
from tests.browser.cluster import Running, running
from tests.namesrv.http.nodes import FakeCluster, replicas

DIALOG = "document.querySelector('dialog[open]')"
TOAST = "document.querySelector('.toast.good')"


async def test_console_changes_topics_groups_and_messages(tmp_path: Path) -> None:
    """Topics, messages, offsets and dead letters are changed by somebody who only clicks."""
    async with running(tmp_path / "cluster", Shape(replicas=1)) as cluster, Browser(tmp_path) as it:
        page = await it.open(f"{cluster.url}/#/topics")
        await makes_a_topic_and_sends_to_it(page)
        await finds_the_newest(page, cluster)
        await changes_and_deletes_the_topic(page, cluster)
        await resets_offsets_after_a_preview(page, cluster)
        await sees_what_was(page, cluster)
        await resends_dead_letters(page, cluster)
        assert page.errors == []


async def submits(page: Page) -> None:
    """Press the dialog's button, and see the notice of success."""
    await page.js("document.querySelectorAll('.toast').forEach(e => e.remove())")
    await page.click("dialog button[type=submit]")
    await page.until(f"!{DIALOG}")
    await page.until(TOAST)


async def makes_a_topic_and_sends_to_it(page: Page) -> None:
    await page.click("[data-do=create]")
    await page.until(DIALOG)
    await page.type("dialog [name=name]", "Console")
    await page.js("document.querySelector('dialog [name=messageType]').value = 'FIFO'")
    await submits(page)
    await page.until("[...document.querySelectorAll('dd')].some(e => e.textContent == 'FIFO')")
    await page.click("[data-do=send]")
    await page.until(DIALOG)
    await page.type("dialog [name=body]", '{"big":12345678901234567890,"list":[]}')
    await page.type("dialog [name=keys]", "k-1")
    await page.type("dialog [name=tags]", "red")
    await page.type("dialog [name=properties]", "shop=berlin")
    await submits(page)
    body = "document.querySelector('pre.body')?.textContent"
    # Numbers stay as they were written.
    assert await page.until(body) == '{\n  "big": 12345678901234567890,\n  "list": []\n}'
    await page.click("[data-way=hex]")
    await page.until(f"{body}.startsWith('000000  7b 22 62 69 67')")


async def finds_the_newest(page: Page, cluster: Running) -> None:
    """By tag; then it follows what comes."""
    await cluster.send("Console", "other", tags="blue")
    await page.click("#nav a[href='#/messages']")
    await page.until("document.querySelector('form [name=tag]')")
    await page.type("form [name=topic]", "Console")
    await page.type("form [name=tag]", "red")
    await page.click("form button[type=submit]")
    rows = "[...document.querySelectorAll('.messages .preview')].map(e => e.textContent)"
    await page.until(f"{rows}.length == 1 && {rows}[0].includes('big')")
    await page.click("[data-do=follow]")
    await cluster.send("Console", "came later", tags="red")
    await page.until(f"{rows}.length == 2 && {rows}[0] == 'came later'")
    await cluster.send("Console", "of another tag", tags="blue")
    await cluster.send("Console", "the last", tags="red")
    await page.until(f"{rows}.length == 3 && {rows}[0] == 'the last'")
    await page.click("[data-do=follow]")


async def changes_and_deletes_the_topic(page: Page, cluster: Running) -> None:
    await page.goto(f"{cluster.url}/#/topics/Console")
    await page.click("[data-do=edit]")
    await page.until(DIALOG)
    await page.js("document.querySelector('dialog [name=writeQueueNums]').value = ''")
    await page.type("dialog [name=writeQueueNums]", "3")
    outlook = "document.querySelector('dialog .outlook')?.textContent"
    await page.until(f"{outlook} == 'writeQueueNums: 8 → 3'")
    await submits(page)
    assert (await cluster.ask("GET", "/topics/Console"))["groups"][0]["writeQueueNums"] == 3
    await page.click("[data-do=remove]")
    await page.until(DIALOG)
    await page.type("dialog [name=typed]", "Consol")
    await page.click("dialog button[type=submit]")
    assert await page.js(f"!!{DIALOG}")  # the name is not whole
    await page.type("dialog [name=typed]", "e")
    await submits(page)
    await page.until("location.hash == '#/topics'")


async def resets_offsets_after_a_preview(page: Page, cluster: Running) -> None:
    await cluster.topic("Orders", 1)
    for number in range(4):
        await cluster.send("Orders", str(number))
    await cluster.ask("PUT", "/subscription-groups/billing", {}, If_None_Match="*")
    latest = {"topic": "Orders", "to": {"position": "latest"}}
    await cluster.ask("POST", "/consumer-groups/billing/reset", latest)
    await page.goto(f"{cluster.url}/#/consumers/billing")
    await page.click("[data-do=reset]")
    await page.until(DIALOG)
    await page.js(
        "(e => { e.value = 'earliest'; e.dispatchEvent(new Event('input', {bubbles: true})) })"
        "(document.querySelector('dialog [name=to]'))"
    )
    outlook = "document.querySelector('dialog .outlook')?.textContent"
    await page.until(f"{outlook}.startsWith('4 messages again, 0 skipped')")
    assert (await cluster.ask("GET", "/consumer-groups/billing"))["lag"] == 0
    await submits(page)
    assert (await cluster.ask("GET", "/consumer-groups/billing"))["lag"] == 4


HISTORY = "import('/dashboard/history.js')"


async def sees_what_was(page: Page, cluster: Running) -> None:
    """Plots of a consumer group, of its topic and of the brokers."""
    plots = "[...document.querySelectorAll('.plot[role=img] canvas')].length"
    labels = "[...document.querySelectorAll('.plot')].map(e => e.ariaLabel).join('; ')"
    await page.until(f"{plots} && {labels}.includes('Lag, at the end: broker-a · Orders 4')")
    await page.click("[data-do=range][data-range='2']")
    await page.until("document.querySelector('[data-range=\"2\"]').ariaPressed == 'true'")
    await page.click("[data-do=range][data-range='0']")
    await page.until(
        "document.querySelector('[data-range=\"0\"]').ariaPressed == 'true'"
        f" && {plots} && {labels}.includes('Lag, at the end: broker-a · Orders 4')"
    )
    await page.goto(f"{cluster.url}/#/topics/Orders")
    await page.until(
        f"{plots} && {labels}.includes('Messages in the topic, at the end: broker-a 4')"
    )
    await page.click("#nav a[href='#/history']")
    await page.until(f"{plots} >= 2 && {labels}.includes('Log written per second, at the end: ')")
    values = "[1, null, 2, 3, null, null, 4]"
    assert await page.js(f"{HISTORY}.then(one => one.isolated({values}))") == [0, 6]
    for lag in ("9 - n", "n"):  # a line has its colour whatever is most just now
        result = (
            "({groups: Array.from({length: 9}, (_, n) => ({group: 'g' + n, series: ["
            f"{{name: 'lag', values: [n == 4 ? 0 : 5 + {lag}]}}]}}))}})"
        )
        lines = f"{HISTORY}.then(one => one.linesOf({{names: ['lag']}}, {result}))"
        shown = await page.js(
            f"{lines}.then(({{shown, more}}) => [...shown.map(l => l.label), more])"
        )
        assert shown == [*(f"g{n}" for n in range(9) if n != 4), 1]


async def resends_dead_letters(page: Page, cluster: Running) -> None:
    """Some that are chosen, then all."""
    for topic in ("%25DLQ%25billing", "%25RETRY%25billing"):
        await cluster.topic(topic, 1)
    for number in range(5):
        await cluster.send("%DLQ%billing", f"dead {number}", keys=f"d{number}")
    await page.goto(f"{cluster.url}/#/dead/billing")
    await page.until("document.querySelectorAll('.messages [data-input=one]').length == 5")
    await page.click("[aria-label='Select d3']")
    await page.click("[aria-label='Select d1']")
    reported = "document.querySelector('[data-key=progress]')?.textContent"
    await page.click("[data-do=some]:not(:disabled)")
    await page.until(DIALOG)
    await page.click("dialog button[type=submit]")
    await page.until(f"{reported}?.startsWith('2 dead letters resent of 2 · done')")
    await page.click("[data-do=all]:not(:disabled)")
    await page.until(DIALOG)
    await page.type("dialog [name=typed]", "billing")
    await page.click("dialog button[type=submit]")
    await page.until(f"{reported}?.startsWith('5 dead letters resent · done')")
    retries = await cluster.ask("GET", "/topics/%25RETRY%25billing/messages")
    assert sorted(one["text"] for one in retries["items"]) == [
        "dead 0", "dead 1", "dead 1", "dead 2", "dead 3", "dead 3", "dead 4",
    ]  # fmt: skip


# All elements, those within others' shadow roots, too.
DEEP = (
    "(function deep(root) { return [...root.querySelectorAll('*')].flatMap("
    "e => [e, ...(e.shadowRoot ? deep(e.shadowRoot) : [])]) })(document)"
)
TRY = f"{DEEP}.find(e => e.localName == 'button' && e.textContent.trim() == 'TRY')"


async def test_api_reference_is_rendered_and_tries_an_operation(tmp_path: Path) -> None:
    async with FakeCluster(*replicas()) as cluster, Browser(tmp_path) as browser:
        page = await browser.open(f"{cluster.url}/docs#get-/api/v1/topics")
        await page.until(f"!!{TRY}", 60)
        await page.js(f"{TRY}.click()")
        await page.until(f'{DEEP}.some(e => /"topic": "Orders"/.test(e.textContent))', 60)
        assert page.errors == []
