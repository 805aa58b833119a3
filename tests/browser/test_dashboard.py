"""The dashboard in a real browser, over a real cluster whose leader dies while it is looked at."""

from pathlib import Path

import orjson

from raftmq.chaos.cluster.topology import Shape
from raftmq.remoting.registration import TopicConfig
from tests.browser.chromium import Browser, Page
from tests.browser.cluster import Running, running
from tests.namesrv.http.nodes import FakeCluster, replicas

PAGES = ("cluster", "scaling", "topics", "consumers", "messages", "clients", "accounts", "events")
NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
LEADER = "document.querySelector('.replica.leader strong')?.textContent"


async def test_dashboard_shows_a_cluster_through_a_leader_kill(tmp_path: Path) -> None:
    shape = Shape(faultable=True)
    async with running(tmp_path / "cluster", shape) as cluster, Browser(tmp_path) as browser:
        await cluster.topic("Orders")
        sent = await cluster.send("Orders", NASTY, keys="key-1", properties={"note": NASTY})
        page = await browser.open(f"{cluster.url}/")
        await page.until(f"document.querySelectorAll('.replica').length == 3 && {LEADER}")
        await page.until("document.getElementById('live').textContent == 'live'")
        await finds_a_message(page, sent["offsetMsgId"])
        await shows_the_new_leader(page, cluster)
        await transfers_with_a_question_first(page)
        await has_another_one_lead(page)
        await changes_the_members(page, cluster)
        await injects_a_fault_and_heals_it(page)
        await fits_a_phone(browser, cluster.url, sent["offsetMsgId"])
        assert page.errors == []


async def finds_a_message(page: Page, message_id: str) -> None:
    """By key; whatever the message says stays text."""
    await page.click("#nav a[href='#/messages']")
    await page.until("document.querySelector('form [name=key]')")
    await page.type("form [name=topic]", "Orders")
    await page.type("form [name=key]", "key-1")
    await page.click("form button[type=submit]")
    await page.until("document.querySelector('.messages .row .name')?.textContent == 'key-1'")
    await page.click(".messages .row")
    body = await page.until("document.querySelector('pre.body')?.textContent")
    assert body == NASTY
    await page.until("document.querySelectorAll('.trace .good').length >= 5")  # made, stored, on 3
    assert message_id in await page.js("location.hash")
    assert await page.js("document.title.includes('owned')") is False
    assert await page.js("document.querySelectorAll('main img, main script').length") == 0


async def shows_the_new_leader(page: Page, cluster: Running) -> None:
    """The leader is killed while the page is open: the new one, and how it came to that."""
    await page.click("#nav a[href='#/cluster']")
    await page.until(LEADER)
    killed = await cluster.kill_leader()
    await page.until(f"{LEADER} && {LEADER} != '{killed}'")
    silent = "document.querySelector('.replica.silent strong')?.textContent"
    await page.until(f"{silent} == '{killed}'")
    await page.until("document.getElementById('health').className.includes('bad')")
    lead = "document.querySelector('.failover .lead')?.textContent"
    await page.until(f"{lead}?.startsWith('{killed} → ') && /\\d ms/.test({lead})")
    marks = "[...document.querySelectorAll('.failover .marks .what')].map(e => e.textContent)"
    # Each is heard on a way of its own: the name server may see the end behind the election.
    stages = ["Leader lost", "Leader elected", "Leader ready", "Route updated"]
    for stage in stages:
        await page.until(f"{marks}.includes('{stage}')")
    shown = [text for text in await page.js(marks) if text in stages]
    assert sorted(shown) == sorted(stages)
    assert shown.index("Leader elected") < shown.index("Leader ready")
    cluster.cluster.start(killed)
    await page.until("!document.querySelector('.replica.silent')")
    await page.until("document.querySelector('.note.good')")  # all replicas agree


async def transfers_with_a_question_first(page: Page) -> None:
    before = await page.until(LEADER)
    await page.click("[data-do=transfer]")
    await page.until("document.querySelector('dialog[open]')")
    said = await page.js("document.querySelector('dialog').textContent")
    assert f"{before} stops accepting sends" in said
    await page.key("Escape")
    await page.until("!document.querySelector('dialog[open]')")
    assert await page.js(LEADER) == before
    await page.click("[data-do=transfer]")
    await page.until("document.querySelector('dialog[open]')")
    # The first question's end may be told as late as this, and is not the second one's.
    await page.js("document.getElementById('dialog').dispatchEvent(new Event('close'))")
    await page.click("dialog button[type=submit]")
    await page.until(f"{LEADER} && {LEADER} != '{before}'")


async def opens(page: Page, what: str, field: str) -> None:
    """A question for which the leader is asked first; where it does not answer, once more."""
    question = f"document.querySelector('dialog[open] [name={field}]')"
    refused = "document.querySelector('.toast.bad:not(.seen)')"
    while True:
        await page.js("document.querySelectorAll('.toast').forEach(e => e.classList.add('seen'))")
        await page.click(f"[data-do={what}]")
        if await page.until(f"{question} ? 'asked' : {refused} && 'refused'") == "asked":
            return


async def has_another_one_lead(page: Page) -> None:
    """Chosen once, it leads; then nobody is preferred again."""
    await page.until("document.querySelector('.note.good')")  # the name server knows who leads
    before = await page.until(LEADER)
    await opens(page, "preferred", "name")
    said = await page.js("document.querySelector('dialog').textContent")
    assert "No preferred leader is set." in said
    choices = "[...document.querySelectorAll('dialog [name=name]')].map(e => e.value)"
    expected = next(name for name in await page.js(choices) if name not in ("", before))
    await page.click(f"dialog [value={expected}]")
    await page.click("dialog button[type=submit]")
    await page.until(f"{LEADER} == '{expected}'")
    tag = "document.querySelector('.replica.leader .who .tag')?.textContent"
    await page.until(f"{tag} == 'preferred'")
    rows = "[...document.querySelectorAll('.beliefs tbody tr')].map(r => r.textContent)"
    assert f"Preferred leader{expected * 3}" in await page.until(
        f"{rows}.some(t => t == 'Preferred leader{expected * 3}') && {rows}"
    )
    heard = "t.startsWith('Last contact of the leader') && /\\d m?s ago/.test(t)"
    await page.until(f"{rows}.some(t => {heard})")
    await page.until("document.querySelector('.note.good')")
    await opens(page, "preferred", "name")
    assert f"Preferred now: {expected}." in await page.js(
        "document.querySelector('dialog').textContent"
    )
    await page.click("dialog [name=name]")  # the first one: nobody
    await page.click("dialog button[type=submit]")
    await page.until(f"!{tag}")


async def changes_the_members(page: Page, cluster: Running) -> None:
    """A learner that does not answer is not promoted, and is removed after a second question."""
    group = await page.js("document.querySelector('[data-do=members]').dataset.group")
    learner = {"id": "n9", "address": "127.0.0.1:1", "force": True}
    await cluster.ask("POST", f"/groups/{group}/members", learner)
    members = "document.querySelector('.beliefs')?.textContent.includes('n9 (learner)')"
    await page.until(members)
    open_dialog = "document.querySelector('dialog[open]')?.textContent"
    for deed, text in (
        ("promote", "of which 1 may fail now, and 4 voters, of which 1 may fail then"),
        ("remove", "The group's voters do not change."),
    ):
        await opens(page, "members", "change")
        assert not await page.js("!!document.querySelector('dialog [value=\"promote n0\"]')")
        await page.click(f"dialog [value='{deed} n9']")
        await page.click("dialog button[type=submit]")
        said = await page.until(f"{open_dialog}?.startsWith('{deed.title()} n9') && {open_dialog}")
        assert text in said
        await page.click("dialog button[type=submit]")
        if deed == "promote":
            refused = "[...document.querySelectorAll('.toast.bad')].map(e => e.textContent).join()"
            reported = await page.until(f"{refused}.includes('Promotion of n9') && {refused}")
            assert "n9" in reported
    await page.until(f"!{members}")


async def injects_a_fault_and_heals_it(page: Page) -> None:
    """The brokers run over the fault layer, and take faults over HTTP."""
    await page.click("[data-do=faults]")
    await page.until("document.querySelector('dialog[open]')")
    await page.click("dialog [value=slow]")
    await page.click("dialog button[type=submit]")
    await page.until("document.querySelector('.replica .tag.bad')?.textContent == '1 fault'")
    await page.click("[data-do=faults]")
    await page.click("dialog [value=heal]")
    await page.click("dialog button[type=submit]")
    await page.until("!document.querySelector('.replica .tag.bad')")


async def fits_a_phone(browser: Browser, url: str, message_id: str) -> None:
    """No page is wider than the screen; everything can be reached by keyboard, and has a name."""
    phone = await browser.open(f"{url}/", width=380, height=780)
    for name in (*PAGES, "topics/Orders", f"messages/{message_id}"):
        await phone.goto(f"{url}/#/{name}")
        await phone.until(
            "document.querySelector('main h1') && !document.querySelector('.loading')"
        )
        width = await phone.js("document.scrollingElement.scrollWidth")
        assert width <= 380, f"{name} is {width} px wide"
        unnamed = await phone.js(
            "[...document.querySelectorAll('a, button, input, select, textarea')].filter("
            "e => !e.hidden && "
            "!(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.value))"
            ".map(e => e.outerHTML).join(' ')"
        )
        assert unnamed == "", f"{name}: {unnamed} have no name"
    await phone.key("Tab")
    assert await phone.js("document.activeElement.className") == "skip"
    assert phone.errors == []


async def test_dashboard_shows_a_thousand_topics_and_asks_for_a_token(tmp_path: Path) -> None:
    token = "viewer-0123456789abcdef"
    file = tmp_path / "tokens.json"
    file.write_bytes(orjson.dumps({"tokens": [{"token": token, "role": "viewer", "name": "eve"}]}))
    file.chmod(0o600)
    topics = [TopicConfig(f"topic-{number:04}", 8, 8, 6) for number in range(1200)]
    topics.append(TopicConfig(NASTY, 8, 8, 6))
    async with (
        FakeCluster(*replicas(), http_tokens_file=str(file)) as cluster,
        Browser(tmp_path) as browser,
    ):
        cluster.register(cluster.nodes["n0"], topics)
        page = await browser.open(f"{cluster.url}/#/topics")
        await page.until("document.querySelector('dialog[open] [name=token]')")
        await page.type("dialog [name=token]", token)
        await page.key("Enter")
        await page.until("document.querySelectorAll('.rows .row').length == 1000")
        assert await page.js("document.querySelector('.rows .name').textContent") == NASTY
        await page.click("[data-do=more]")
        await page.until("document.querySelectorAll('.rows .row').length == 1201")
        await page.type("input[type=search]", "C-11")  # in any case: topic-1100 to topic-1199
        await page.until("document.querySelectorAll('.rows .row').length == 100")
        assert await page.js("document.activeElement.type") == "search"  # still typing there
        await page.click("#nav a[href='#/cluster']")
        await page.until(LEADER)
        await page.until("document.querySelector('[data-do=transfer]').disabled")  # a viewer
        for button in ("preferred", "members"):
            assert await page.js(f"document.querySelector('[data-do={button}]').disabled")
        assert await page.js("document.title") == "Cluster · raftmq"
        # The session holds when the page is loaded again, is out of scripts' reach, and ends.
        await page.goto(f"{cluster.url}/?again#/cluster")
        await page.until("document.getElementById('me').textContent == 'eve · viewer'")
        assert await page.js("document.cookie + JSON.stringify(sessionStorage)") == "{}"
        await page.click("#me")
        await page.click("dialog button[type=submit]")
        await page.until("document.querySelector('dialog[open] [name=token]')")
        assert page.errors == []
