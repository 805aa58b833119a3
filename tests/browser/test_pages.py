"""The console's pages in a real browser, over answers that these tests give: slow, late and lost
ones, too."""

import re
from pathlib import Path

from tests.browser.chromium import Browser, Page
from tests.namesrv.http.nodes import FakeCluster, replicas
from tests.namesrv.http.provider import CLIENT, Provider
from tests.namesrv.http.test_login import TOKEN, tokens_file
from tests.namesrv.http.test_oidc import secret_file
from tests.waiting import until

DIALOG = "document.querySelector('dialog[open]')"
# `answers`: a part of an address → a function of the address, its parameters and the request, whose
# value is answered; the longest part that fits counts. `lost` is never answered. `held` waits for
# `release()`.
FAKE = """
window.asked = [];
window.hold = () => { window.held = new Promise((open) => { window.release = open; }); };
hold();
const real = window.fetch;
window.fetch = async (url, options = {}) => {
  const parts = Object.keys(window.answers).filter((part) => url.includes(part));
  const found = parts.toSorted((one, other) => other.length - one.length)[0];
  if (!found) return real(url, options);
  window.asked.push(`${options.method ?? 'GET'} ${url}`);
  options.signal?.throwIfAborted();
  const given = new URLSearchParams(url.split('?')[1]);
  const ended = new Promise((_, end) =>
    options.signal?.addEventListener('abort', () => end(options.signal.reason)));
  const value = await Promise.race([window.answers[found](url, given, options), ended]);
  return value instanceof Response ? value : Response.json(value);
};
window.lost = () => new Promise(() => {});
window.message = (group, at, more = {}) => ({
  group, topic: 'T', queueId: 0, queueOffset: at, commitLogOffset: at,
  offsetMsgId: `${group}-${at}`, keys: `${group}-${at}`, storeTimestamp: at, bornTimestamp: at,
  text: `${at}`, bodySize: 1, properties: {}, ...more});
window.listed = (items, next = null) => ({items, next, scanned: items.length, errors: []});
window.answers = ANSWERS;
"""


async def test_console_pages_handle_slow_and_late_answers(tmp_path: Path) -> None:
    async with FakeCluster(*replicas()) as cluster, Browser(tmp_path) as browser:

        async def opened(place: str, answers: str) -> Page:
            page = await browser.open(f"{cluster.url}/#/events")
            await page.until("document.querySelector('.pill.good')")
            await page.js(f"(() => {{ {FAKE.replace('ANSWERS', answers)} }})()")
            await page.js(f"location.hash = '#/{place}'")
            return page

        await resends_what_was_asked_for(await opened("dead/billing", DEAD_LETTERS))
        await tells_that_nobody_answers(await opened("cluster", NOBODY))
        await changes_the_access_of_one_group(await opened("accounts", ACCOUNTS))
        await drains_and_removes_a_group(await opened("scaling", SCALING))
        await moves_leaders_in_turn(await opened("scaling", SCALING))
        await aligns_what_differs(await opened("scaling", SCALING))
        await shows_what_was_searched_last(await opened("messages?topic=Alpha", MESSAGES))
        await keeps_no_plot_that_is_gone(await opened("history", PLOTS))
        await says_when_a_line_begins(await opened("history", NO_PLOTS))
        await shows_the_health_in_full(await opened("events", "{}"))
        await offers_the_names_that_are_there(await opened("messages?by=offset", OFFERED))
        await finds_the_readers_among_many(await opened("topics/Beta", READERS))
        await asks_few_readers_at_once(await opened("topics/Beta", MANY_READERS))
        await follows_clocks_that_differ(await opened("messages?topic=T", CLOCKS))
        await waits_for_a_slow_list(await opened("events", SLOW_LIST))
        await asks_again_for_faults(await opened("events", FAULTS))
        await shows_a_large_body_once(await opened("events", LARGE))
        await pages_and_saves_what_is_found(await opened("messages?topic=T&by=time", BY_TIME))
        await asks_for_a_login_only_when_it_may(await opened("accounts", REFUSED))


# A name server that is frozen; here a fiftieth of the page's patience is enough.
NOBODY = """{'/api/v1/': () => lost()}"""
SHORT = """(() => {
  const [wait, end] = [window.setTimeout, AbortSignal.timeout];
  window.setTimeout = (work, ms) => wait(work, ms / 50);
  AbortSignal.timeout = (ms) => end.call(AbortSignal, ms / 50);
})()"""


async def tells_that_nobody_answers(page: Page) -> None:
    """The state is not green, the events are not live, and a change is perhaps done."""
    text = "this name server does not answer"
    await page.js(SHORT)
    await page.until(f"document.querySelector('.pill.bad')?.textContent == '{text}'")
    await page.until(f"document.querySelector('[role=alert]')?.textContent.startsWith('{text}')")
    api = "import('/dashboard/api.js')"
    written = f"{api}.then(one => one.call('PUT', '/topics/T')).catch(e => [e.message, e.code])"
    assert await page.js(written) == [text, "OUTCOME_UNKNOWN"]
    ended = f"{api}.then(one => one.get('/x', {{signal: AbortSignal.abort()}})).catch(e => e.name)"
    assert await page.js(ended) == "AbortError"
    # A stream that opens, says something, and says no more.
    await page.js("""{
      const stream = ({signal}) => new ReadableStream({start(it) {
        it.enqueue(new TextEncoder().encode(':\\n\\n'));
        signal?.addEventListener('abort', () => it.error(signal.reason));
      }});
      window.answers['/api/v1/events'] = (_, __, options) => new Response(stream(options));
      window.states = [];
      import('/dashboard/api.js').then(one => one.follow(() => {}, (is) => states.push(is)));
      0;
    }""")
    await page.until("states.length >= 3")
    assert await page.js("states.slice(0, 3)") == [True, False, True]
    assert page.errors == []


# Two broker groups of three, both led from m0.
SCALING = """(() => {
  window.draining = 0;
  window.left = 40;
  window.leads = ['n0', 'n3'];
  const member = (group, at) => ({id: `n${group * 3 + at}`, address: `m${at}:1`, role: 'voter'});
  const names = ['broker-a', 'broker-b'];
  const brokers = (group) => [0, 1, 2].map((at) => {
    const {id} = member(group, at);
    const leads = window.leads[group] === id;
    return {name: id, address: `${id}:1`, brokerId: at, registered: true, node: {
      name: id, mode: 'raft', role: leads ? 'leader' : 'follower', leaderReady: leads,
      members: [0, 1, 2].map((one) => member(group, one)), peers: [],
      rates: {sendsPerS: 7, pullsPerS: 2}, disk: {usedRatio: (at + 1) / 4, freeBytes: 1 << 30},
      commitLog: {minOffset: 0, maxOffset: 2048}, drainingMs: group ? window.draining : 0}};
  });
  const cluster = () => ({nameServer: {address: 'ns'}, at: Date.now(), topicCount: 1,
    differences: [], findings: [], groups: names.map((name, group) => ({name, cluster: 'C',
      leader: window.leads[group], topicCount: 1, term: 1, brokers: brokers(group)}))});
  const balance = (moved = null) => ({moved, next: null,
    items: names.map((group, at) => ({group, leader: window.leads[at], preferred: null,
      target: at ? 'n4' : 'n0', moves: Boolean(at) && window.leads[at] !== 'n4', reason: ''})),
    machines: [0, 1, 2].map((at) => ({zone: at < 2 ? 'east' : 'west', machine: `m${at}`, groups: 2,
      leaders: window.leads.filter((id) => Number(id[1]) % 3 === at).length,
      leadersAfter: at < 2 ? 1 : 0}))});
  const drain = () => ({brokerName: 'broker-b', drainingMs: window.draining, removed: false,
    takesSends: false, isEmpty: !window.left, remaining: window.left, delayed: 0, timers: 0,
    unconsumed: window.left ? [{topic: 'T', group: 'billing', messages: window.left}] : [],
    latestDueMs: null, transactions: 0, popped: 0, writers: 1, idempotent: 0, deadLetters: 2,
    emptyAtMs: Date.now() + 300_000, remainder: `the broker group still has: ${window.left} of T`});
  return {
    '/api/v1/cluster': cluster,
    '/api/v1/leader-balance': (_, __, {method}) => {
      if (method === 'GET') return balance();
      window.leads[1] = 'n4';
      return balance(window.moved++ ? null : 'broker-b');
    },
    '/api/v1/drains': () => ({items: window.draining ? [drain()] : [], next: null, errors: []}),
    '/groups/broker-b/drain': (_, __, {method, body}) => {
      window.draining = method === 'DELETE' ? 0 : Date.now();
      if (body) window.removal = body;
      return drain();
    },
    '/api/v1/definitions': (_, given) => ({groups: names, errors: [],
      next: given.get('cursor') ? null : 'Zg', items: given.get('cursor') ? [
        {kind: 'group', name: 'billing', has: {'broker-a': 'there', 'broker-b': 'missing'},
         outcome: given.get('like') ? 'changed' : 'left: it differs', why: ''}] : [
        {kind: 'topic', name: 'T', has: {'broker-a': '8/8 RW', 'broker-b': '4/4 RW'},
         outcome: 'changed', why: '8/8 in broker-b'}]}),
    '/align': (url) => ({results: [{group: 'broker-b', status: 200,
      outcome: url.includes('billing') ? 'failed' : 'ok', error: 'it was changed'}]}),
  };
})()"""
CELLS = "[...document.querySelectorAll('[data-key=machines] tr')].map(r => r.textContent)"


async def drains_and_removes_a_group(page: Page) -> None:
    """The name is typed; content that would be lost is named; the rest and an estimate are seen."""
    await page.until(f"{CELLS}.length == 4 && {CELLS}[1].includes('25 %, 1.0 GiB free')")
    assert (await page.js(CELLS))[1].startswith("eastm0212")
    await page.click("[data-do=drain][data-group=broker-b]")
    await page.until(DIALOG)
    await page.click("dialog button[type=submit]")
    assert await page.js(f"!!{DIALOG} && !window.draining")  # the name is not typed
    await page.type("dialog [name=typed]", "broker-b")
    await page.click("dialog button[type=submit]")
    card = "document.querySelector('[data-key=drain-broker-b]')?.textContent"
    shown = await page.until(f"{card}?.includes('40 messages') && {card}")
    assert "in about 5 min" in shown and "2 dead letters, 1 exactly-once writer" in shown
    assert "Tbilling40" in shown
    await page.js("window.left = 10; 0")
    width = "document.querySelector('[data-key=drain-broker-b] .bar > span').style.width"
    await page.until(f"{width} == '75%'")
    removal = "[data-do=remove][data-group=broker-b]"
    for left, text in ((10, "still has: 10 of T"), (0, "no message is lost")):
        await page.js(f"window.left = {left}; 0")
        await page.until(f"{card}?.includes('{left or 'empty'}')")
        await page.click(removal)
        assert text in await page.until(f"{DIALOG}?.textContent")
        await page.type("dialog [name=typed]", "broker-b")
        await page.click("dialog button[type=submit]")
        await page.until(f"!{DIALOG} && window.removal == '{{\"lose\":{str(bool(left)).lower()}}}'")
    await page.click("[data-do=cancel][data-group=broker-b]")
    await page.until(DIALOG)
    await page.click("dialog button[type=submit]")
    await page.until(f"!{card} && !window.draining")
    assert page.errors == []


async def moves_leaders_in_turn(page: Page) -> None:
    """It asks first, then goes on until nothing is left, and says that all is even."""
    await page.js("window.moved = 0; 0")
    line = "document.querySelector('[data-key=balance] li')?.textContent"
    await page.until(f"{line} == 'Movebroker-b: n4 should lead instead of n3'")
    await page.click("[data-do=balance]")
    assert "broker-b: n3 → n4" in await page.until(f"{DIALOG}?.textContent")
    await page.click("dialog button[type=submit]")
    await page.until("document.querySelector('[data-key=balance].good') && window.moved == 2")
    toasts = "[...document.querySelectorAll('.toast')].map(e => e.textContent).join()"
    await page.until(f"{toasts}.includes('1 leader moved.')")
    assert page.errors == []


async def aligns_what_differs(page: Page) -> None:
    """All pages are compared; what an alignment changes is shown first, and each outcome then."""
    await page.until("document.querySelector('[name=like]')")
    await page.js("document.querySelector('[name=like]').value = 'broker-a'")
    await page.click("[data-key=definitions] form button")
    names = "document.querySelectorAll('[data-key=definitions] tbody tr strong')"
    rows = f"[...{names}].map(e => e.textContent).join()"
    await page.until(f"{rows} == 'T,billing'")
    await page.click("[data-do=align]")
    said = await page.until(f"{DIALOG}?.textContent")
    assert "T: 8/8 in broker-b" in said and "billing: changed" in said
    await page.click("dialog button[type=submit]")
    warned = "document.querySelector('.toast.warn')?.textContent"
    assert "billing in broker-b: it was changed" in await page.until(warned)
    asked = await page.js("window.asked.filter(one => one.startsWith('POST'))")
    assert asked == [
        "POST /api/v1/topics/T/align", "POST /api/v1/subscription-groups/billing/align"
    ]  # fmt: skip
    assert page.errors == []


# Two broker groups that differ, and one that does not answer.
ACCOUNTS = """(() => {
  const in_ = (group, defaultTopicPerm) => ({group, accessKey: 'shop-key', admin: false,
    defaultTopicPerm, defaultGroupPerm: 'SUB', topicPerms: [], groupPerms: [],
    whiteRemoteAddress: ''});
  const groups = [['internal', ['10.0.0.*']], ['public', []]];
  window.bodies = [];
  return {
    '/accounts': () => ({
      items: [{accessKey: 'shop-key', groups: [in_('internal', 'PUB|SUB'), in_('public', 'DENY')]}],
      groups: groups.map(([group, whiteAddresses]) => ({group, enabled: true, whiteAddresses})),
      errors: [{group: 'third', error: 'no connection within 1 s'}]}),
    '/accounts/': (_, __, {body}) => (bodies.push(JSON.parse(body)), {results: []}),
    '/white-addresses': (_, __, {body}) => (bodies.push(JSON.parse(body)), {results: []}),
  };
})()"""


async def changes_the_access_of_one_group(page: Page) -> None:
    """What a dialog shows is one broker group's, and so is the change."""
    written = "asked.filter(one => one.startsWith('PUT'))"

    async def submit() -> None:
        await page.click("dialog button[type=submit]")
        await page.until(f"!{DIALOG}")

    await page.click("[data-do=white][data-group=public]")
    await page.until(DIALOG)
    assert await page.js("document.querySelector('dialog [name=addresses]').value") == ""
    await page.type("dialog [name=addresses]", "192.168.7.7")
    await submit()
    await page.until(f"{written}.length == 1")
    await page.click("[data-do=edit][data-group=public]")
    await page.until(DIALOG)
    assert await page.js("document.querySelector('dialog [name=defaultTopicPerm]').value") == "DENY"
    await submit()
    await page.until(f"{written}.length == 2")
    assert await page.js(written) == [
        "PUT /api/v1/white-addresses?group=public",
        "PUT /api/v1/accounts/shop-key?group=public",
    ]
    assert await page.js("bodies[0]") == {"addresses": ["192.168.7.7"]}
    assert await page.js("bodies[1].defaultTopicPerm") == "DENY"
    await makes_no_account_over_another(page, written)
    assert page.errors == []


async def makes_no_account_over_another(page: Page, written: str) -> None:
    """Another administrator may have made the account since the page read them."""
    toasts = "[...document.querySelectorAll('.toast.bad')].map(e => e.textContent).at(-1)"

    async def make(key: str) -> None:
        await page.click("[data-do=create]")
        await page.until(DIALOG)
        await page.type("dialog [name=accessKey]", key)
        await page.type("dialog [name=secretKey]", "secret-0001")
        await page.click("dialog button[type=submit]")
        await page.until(f"!{DIALOG}")

    await make("shop-key")
    await page.until(f"{toasts} == 'Account shop-key: it exists in internal, public already.'")
    await make("till-key")
    await page.until(f"{toasts} == 'Account till-key: third does not say whether it exists.'")
    assert await page.js(f"{written}.length") == 2
    await page.js("""{
      const before = answers['/accounts']();
      answers['/accounts'] = () => ({...before, errors: []});
    }""")
    await make("till-key")
    await page.until(f"{written}.length == 3")
    assert await page.js(f"{written}[2]") == "PUT /api/v1/accounts/till-key"


# A topic that gets a message while it is followed, and searches by key of which one waits.
MESSAGES = """{
  '/topics/': async (url, given) => {
    const topic = url.match(/topics.(\\w+)/)[1];
    if (!given.has('sinceMs')) return listed([message('g', 1, {topic})]);
    window.looks = {now: (window.looks?.now ?? 0) + 1, most: Math.max(window.looks?.most ?? 0,
      (window.looks?.now ?? 0) + 1)};
    await held;
    looks.now -= 1;
    return listed([message('g', 2, {topic})]);
  },
  '/topics?': () => listed([]),
  '/v1/messages?': async (_, given) => {
    if (given.get('key') == 'slow') await held;
    return listed([message(given.get('key'), 1)]);
  },
}"""
PAUSE = "new Promise((end) => setTimeout(end, 300))"


async def shows_what_was_searched_last(page: Page) -> None:
    """Neither another topic that is only typed, nor answers that come late or twice."""
    rows = "[...document.querySelectorAll('.messages .name')].map(e => e.textContent)"
    await page.until(f"{rows}.join() == 'g-1'")
    await page.js("{ const each = setInterval; setInterval = (f, ms) => each(f, ms / 20) }")
    await page.click("[data-do=follow]")
    await page.js("document.querySelector('form [name=topic]').value = ''")
    await page.type("form [name=topic]", "Beta")
    await page.until("window.looks")
    await page.js(PAUSE)
    assert await page.js("looks.most") == 1
    await page.js("release()")
    await page.until(f"{rows}.length > 1")
    await page.js(PAUSE)
    assert await page.js(rows) == ["g-2", "g-1"]
    assert await page.js("asked.filter(one => one.includes('/topics/Beta'))") == []
    await page.js("hold()")
    await page.click("[data-by=key]")
    await page.until("!document.querySelector('form [name=tag]')")
    for key in ("slow", "quick"):
        await page.js("document.querySelector('form [name=key]').value = ''")
        await page.type("form [name=key]", key)
        await page.click("form button[type=submit]")
    await page.until(f"{rows}.join() == 'quick-1'")
    await page.js(f"release(); {PAUSE}")
    assert await page.js(rows) == ["quick-1"]
    assert page.errors == []


PLOTS = """{
  '/history': () => ({times: [1, 2], errors: [], groups: [
    {group: 'g', series: [{name: 'messagesInPerS', values: [1, 2]}]}]}),
}"""


async def keeps_no_plot_that_is_gone(page: Page) -> None:
    """Plots that others took the place of, and those of a page that was left."""
    for chosen in (0, 1, 2):
        await page.click(f"[data-range='{chosen}']")
        await page.until(f"document.querySelector('.plot')?.dataset.key.endsWith('d {chosen + 2}')")
        await page.until("document.querySelector('.plot canvas')")
    await until(lambda: canvases_are(page, 1))
    await page.js("location.hash = '#/events'")
    await page.until("!document.querySelector('.plot')")
    await until(lambda: canvases_are(page, 0))
    assert page.errors == []


NO_PLOTS = "{'/history': () => ({times: [30000, 60000], errors: [], groups: []})}"


async def says_when_a_line_begins(page: Page) -> None:
    reported = "[...document.querySelectorAll('.card .empty')].map(e => e.textContent)"
    await page.until(f"{reported}.length == 4")
    stored, _, commits, _ = await page.js(reported)
    begins = "No figures in this range. A line starts 60 s after a broker's start"
    assert stored == f"{begins}."
    assert commits == f"{begins}, with 10 group commits a point."


WIDTHS = (1920, 1540, 1440, 1290, 1280, 1160, 1150, 1024, 800, 720, 380)


async def shows_the_health_in_full(page: Page) -> None:
    """With a long name beside it, too; and the header is never wider than the window."""
    await page.js("""(() => {
      const me = document.getElementById('me');
      me.hidden = false;
      me.textContent = 'anna.schmidt@example.com · operator';
    })()""")
    for width in WIDTHS:
        await page.size(width, 700)
        pill, header = "document.getElementById('health')", "document.querySelector('.top')"
        assert await page.js(f"{pill}.textContent") == "all replicas agree"
        assert await page.js(f"{pill}.scrollWidth <= {pill}.clientWidth"), width
        assert await page.js(f"{header}.scrollWidth <= {header}.clientWidth"), width


OFFERED = "{'/topics?': () => ({items: [{topic: 'Alpha'}, {topic: 'Beta'}], next: null})}"


async def offers_the_names_that_are_there(page: Page) -> None:
    """Where a name is asked for; the only broker group is not asked for."""
    options = "[...document.querySelector('form [name=topic]').list.options].map(e => e.value)"
    await page.until(f"{options}.join() == 'Alpha,Beta'")
    assert await page.js("document.querySelector('form [name=group]')") is None
    dialog = "import('/dashboard/groupedit.js').then(one => one.consumeMode('g', {lagByTopic: {}}))"
    await page.js("window.answers['/modes'] = () => ({items: []})")
    await page.js(f"void {dialog}")
    shown = options.replace("form", "dialog[open]")
    await page.until(f"{DIALOG} && {shown}.join() == 'Alpha,Beta'")
    assert page.errors == []


async def canvases_are(page: Page, count: int) -> bool:
    """Whether so many are in the browser's memory, shown or not."""
    kind = await page.send("Runtime.evaluate", expression="HTMLCanvasElement.prototype")
    result = await page.send("Runtime.queryObjects", prototypeObjectId=kind["result"]["objectId"])
    length = await page.send(
        "Runtime.callFunctionOn",
        objectId=result["objects"]["objectId"],
        functionDeclaration="function () { return this.length; }",
        returnByValue=True,
    )
    await page.send("Runtime.releaseObject", objectId=result["objects"]["objectId"])
    return length["result"]["value"] == count


# 1,000 consumer groups, of which one that is far behind in the alphabet reads Beta; and a few
# thousand more. One connected to a broker has read nothing yet.
READERS = """(() => {
  const listed = (name, topics, clientCount = 0) =>
    ({name, groups: [{group: 'g', clientCount, lag: 0, topics}]});
  const others = Array.from({length: 999}, (_, n) => listed(`a-${n}`, ['Alpha'], 1));
  const view = (lag) => ({clients: [], queues: [{topic: 'Beta', lag, lastTimeMs: 1}]});
  return {
    '/topics/Beta': async () => (await held, {groups: []}),
    '/topics/Beta/queues': () => ({items: []}),
    '/history': () => ({times: [], groups: [], errors: []}),
    '/consumer-groups?': (_, given) => ({
      items: given.get('cursor') ? [listed('new', [], 1), listed('zbilling', ['Beta'])] : others,
      next: window.endless || !given.get('cursor') ? 'more' : null, errors: []}),
    '/consumer-groups/zbilling': () => view(4),
    '/consumer-groups/new': () => view(7),
  };
})()"""


async def finds_the_readers_among_many(page: Page) -> None:
    """Only readers are asked how far they are, and a poll waits for the one before it."""
    await page.js("{ const each = setInterval; setInterval = (f, ms) => each(f, ms / 50) }")
    await page.js("dispatchEvent(new HashChangeEvent('hashchange'))")
    await page.js(PAUSE)
    assert await page.js("asked.filter(one => one.endsWith('/Beta')).length") == 2
    await page.js("release()")
    rows = "[...document.querySelectorAll('[aria-label^=\"Consumer groups of\"] tbody tr')]"
    await page.until(f"{rows}.map(e => e.textContent).join('; ').startsWith('new07')")
    assert await page.js(f"{rows}[1].textContent.startsWith('zbilling04')")
    await page.until("asked.filter(one => one.endsWith('/Beta')).length > 2")
    views = "asked.filter(one => one.includes('/consumer-groups/')).map(one => one.slice(28))"
    assert sorted(set(await page.js(views))) == ["new", "zbilling"]
    await page.js("window.endless = true")
    notes = "[...document.querySelectorAll('.note')].map(e => e.textContent)"
    reported = "Only the first 1,007 consumer groups were searched."
    await page.until(f"{notes}.includes('{reported}')")
    assert page.errors == []


# Twenty consumer groups whose broker is silent for a while.
MANY_READERS = """(() => {
  const groups = [{group: 'g', clientCount: 0, lag: 0, topics: ['Beta']}];
  const items = Array.from({length: 20}, (_, n) => ({name: `r${10 + n}`, groups}));
  return {
    '/topics/Beta': () => ({groups: []}),
    '/topics/Beta/queues': () => ({items: []}),
    '/history': () => ({times: [], groups: [], errors: []}),
    '/consumer-groups?': () => ({items, next: null, errors: []}),
    '/consumer-groups/': async () => (await held,
      {clients: [], queues: [{topic: 'Beta', lag: 1, lastTimeMs: 1}]}),
  };
})()"""


async def asks_few_readers_at_once(page: Page) -> None:
    """A read that waits in the browser for a connection would use up its patience there."""
    views = "asked.filter(one => one.includes('/consumer-groups/'))"
    await page.until(f"{views}.length")
    await page.js(PAUSE)
    assert await page.js(f"{views}.length") == 4
    await page.js("release()")
    rows = "[...document.querySelectorAll('[aria-label^=\"Consumer groups of\"] tbody tr')]"
    await page.until(f"{rows}.length == 20")
    names = [f"r{10 + number}" for number in range(20)]
    assert await page.js(f"{rows}.map(e => e.querySelector('a').textContent)") == names
    assert page.errors == []


# A broker group's clock is ahead, so the newest page has its messages alone. One that is late has
# its own on the next page, and one has not got the topic.
CLOCKS = """(() => {
  window.stored = {ahead: [message('ahead', 9001), message('ahead', 9000)],
    late: [message('late', 8), message('late', 7)]};
  return {'/topics?': () => listed([]), '/topics/': (_, given) => {
    const group = given.get('group');
    if (group == 'none') return Response.json({status: 404, detail: 'none'}, {status: 404});
    const fits = (one) => one.storeTimestamp >= Number(given.get('sinceMs') ?? 0);
    return group ? listed(stored[group].filter(fits).slice(0, Number(given.get('limit'))))
      : listed(stored.ahead, 'more');
  }, '/cluster': () => ({groups: ['ahead', 'late', 'none'].map((name) => ({name, brokers: []})),
    findings: []})};
})()"""


async def follows_clocks_that_differ(page: Page) -> None:
    """What is new in a group is shown, whatever time it bears; what was there is not."""
    rows = "[...document.querySelectorAll('.messages .name')].map(e => e.textContent)"
    await page.until(f"{rows}.length == 2")
    await page.until("asked.some(one => one.endsWith('/cluster'))")
    await page.js("{ const each = setInterval; setInterval = (f, ms) => each(f, ms / 20) }")
    await page.click("[data-do=follow]")
    late = "asked.filter(one => one.includes('group=late')).length"
    await page.until(f"{late} >= 2")
    await page.js("stored.late.unshift(message('late', 10), message('late', 9)); 0")
    await page.until(f"{rows}.length == 4")
    await page.js("stored.late.unshift(message('late', 11, {storeTimestamp: 5})); 0")
    await page.until(f"{rows}.length == 5")  # of another leader, whose clock is behind
    assert await page.js(f"{rows}.join()") == "late-11,late-10,late-9,ahead-9001,ahead-9000"
    assert await page.js("document.querySelectorAll('main .note').length") == 0
    assert page.errors == []


SLOW_LIST = """{'/consumer-groups?': async (_, given) => {
  await held;
  return {items: [{name: `fits-${given.get('q') ?? ''}`, groups: []}], next: null, errors: []};
}}"""


async def waits_for_a_slow_list(page: Page) -> None:
    """A poll does not end the one before it, nor a search; a search ends a poll."""
    await page.js("{ const each = setInterval; setInterval = (f, ms) => each(f, ms / 50) }")
    await page.js("location.hash = '#/consumers'")
    await page.until("asked.length")
    await page.js(PAUSE)
    assert await page.js("asked.length") == 1
    await page.type("input[type=search]", "x")
    await page.until("asked.length == 2")
    await page.js(PAUSE)
    assert await page.js("asked.length") == 2
    await page.js("release()")
    await page.until("document.querySelector('.rows .name')?.textContent == 'fits-x'")
    await page.until("asked.length > 3")
    assert page.errors == []


FAULTS = """{'/faults': () => (asked.length > 3 ? {items: []}
  : Response.json({status: 503, detail: 'busy'}, {status: 503}))}"""


async def asks_again_for_faults(page: Page) -> None:
    """A request that failed says nothing about whether a broker has the fault layer."""
    await page.js("{ const each = setInterval; setInterval = (f, ms) => each(f, ms / 20) }")
    await page.js("location.hash = '#/cluster'")
    await page.until("document.querySelectorAll('[data-do=faults]').length == 3")
    await page.js(
        "answers['/faults'] = () => Response.json({status: 404}, {status: 404}); asked.length = 0"
    )
    await page.until("!document.querySelector('[data-do=faults]')")
    await page.js(PAUSE)
    assert await page.js("asked.length") == 3
    assert page.errors == []


# A large message of data, born at a time that no calendar has, and one of JSON.
LARGE = """(() => {
  const traced = (more) => () => ({group: 'g', replicas: [], consumers: [],
    message: message('g', 1, {bodySize: 3e6, ...more})});
  return {'/messages/DA/trace': traced({text: null, body: 'QUJD'.repeat(1e6), bornTimestamp: 9e15}),
    '/messages/15/trace': traced({text: `[${'1,'.repeat(1e5)}1]`})};
})()"""


async def shows_a_large_body_once(page: Page) -> None:
    """It is not decoded at every render; and the page says a time that is none as it is."""
    await page.js("{ const one = atob; window.most = 0; window.atob = (text) => ("
                  " most = Math.max(most, text.length), one(text)) }")  # fmt: skip
    await page.js("{ const one = JSON.parse; window.parsed = 0; JSON.parse = (text) => ("
                  " parsed += text.startsWith('[1'), one(text)) }")  # fmt: skip
    render = "import('/dashboard/app.js').then(it => (it.app.update(), new Promise(f => "
    render += "requestAnimationFrame(() => requestAnimationFrame(f)))))"
    await page.js("location.hash = '#/messages/DA'")
    await page.until("document.querySelector('pre.body')?.textContent.startsWith('000000  41 42')")
    assert await page.js("most") < 100_000
    facts = "[...document.querySelectorAll('dd')].map(e => e.textContent.trim())"
    assert "9000000000000000 ms" in await page.js(facts)
    assert "NaN" not in await page.js("document.querySelector('main').textContent")
    await page.js("location.hash = '#/messages/15'")
    await page.until("document.querySelector('pre.body')?.textContent.startsWith('[\\n  1,')")
    for _ in range(3):
        await page.js(render)
    assert await page.js("parsed") == 1
    assert page.errors == []


BY_TIME = """{'/topics?': () => listed([]), '/v1/messages?': (_, given) => given.has('cursor')
  ? listed([message('g', 2, {text: null, body: null})]) : listed([message('g', 1)], 'more')}"""


async def pages_and_saves_what_is_found(page: Page) -> None:
    """By time there are more pages; a body that lists leave out is missed in what is saved."""
    await page.click("form button[type=submit]")
    await page.click("[data-do=more]")
    rows = "[...document.querySelectorAll('.messages .name')].map(e => e.textContent).join()"
    await page.until(f"{rows} == 'g-1,g-2'")
    assert await page.js("document.querySelector('[data-do=more]')") is None
    last = "asked.filter(it => it.startsWith('GET /api/v1/messages?')).at(-1)"
    pattern = r"GET /api/v1/messages\?topic=T&startMs=\d+&limit=64&cursor=more"
    assert re.fullmatch(pattern, await page.js(last))
    await page.click("[data-do=save]")
    toast = "document.querySelector('.toast.warn')?.textContent"
    text = "1 message is saved without its body, which is too large for lists."
    assert (await page.until(toast)).startswith(text)
    assert page.errors == []


REFUSED = """Object.assign(ACCOUNTS, {'/cluster': () => {
  if (window.refuses) return Response.json({status: 401, detail: 'no token'}, {status: 401});
  return {groups: [], findings: []};
}})""".replace("ACCOUNTS", ACCOUNTS)


async def asks_for_a_login_only_when_it_may(page: Page) -> None:
    """Not over a dialog that is being filled, and not at each poll once somebody said no."""
    await page.click("[data-do=create]")
    await page.type("dialog [name=accessKey]", "half-filled")
    checks = "asked.filter(one => one.endsWith('/cluster')).length"
    look = "import('/dashboard/app.js').then(it => it.app.refresh())"
    await page.js("window.refuses = true")
    await page.js(look)
    await page.until("document.querySelector('.pill.bad')?.textContent == 'no token'")
    assert await page.js("document.querySelector('dialog [name=accessKey]').value") == "half-filled"
    await page.click("dialog [data-cancel]")
    await page.until("document.querySelector('dialog[open] [name=token]')")
    await page.click("dialog [data-cancel]")
    await page.until(f"!{DIALOG}")
    before = await page.js(checks)
    await page.until(f"{checks} > {before}")
    await page.js(PAUSE)
    assert not await page.js(f"!!{DIALOG}")
    await page.js("answers['/accounts/'] = answers['/cluster']; 0")
    await page.click("[data-do=remove]")
    await page.type("dialog [name=typed]", "shop-key")
    await page.click("dialog button[type=submit]")
    await page.until("document.querySelector('dialog[open] [name=token]')")  # it is wanted now
    assert page.errors == []


# Two pages of each tag; what is resent waits.
DEAD_LETTERS = """{
  '/messages?': (_, given) => {
    const [tag, before] = [given.get('tag'), given.get('before')];
    return listed([message(tag || 'any', before ? 1 : 2)], before ? null : 'more');
  },
  '/messages/resend': async (_, __, {body}) => {
    await held;
    if (window.breaks) throw new TypeError('Failed to fetch');
    return {items: JSON.parse(body).messageIds.map((id) => ({messageId: id, outcome: 'ok'}))};
  },
}"""


async def resends_what_was_asked_for(page: Page) -> None:
    """Another filter that is set meanwhile changes nothing; what is uncertain is said."""
    reported = "document.querySelector('[data-key=progress]')?.textContent"
    shown = "document.querySelector('.messages .name')?.textContent"

    async def resend_all() -> None:
        await page.click("[data-do=all]:not(:disabled)")
        await page.until(DIALOG)
        await page.type("dialog [name=typed]", "billing")
        await page.click("dialog button[type=submit]")

    await page.until(shown)
    await page.type("form [name=tag]", " red ")
    await page.click("form button[type=submit]")
    await page.until(f"{shown} == 'red-2'")
    await resend_all()
    await page.until("asked.some(one => one.endsWith('/messages/resend'))")
    await page.js("document.querySelector('form [name=tag]').value = ''")
    await page.click("form button[type=submit]")
    await page.until(f"{shown} == 'any-2'")
    await page.js("release()")
    await page.until(f"{reported}?.startsWith('2 dead letters resent · done')")
    complete = "asked.filter(one => one.includes('limit=256')).map(one => one.match(/tag=\\w+/)[0])"
    assert await page.js(complete) == ["tag=red", "tag=red"]
    await page.js("window.breaks = true")
    await resend_all()
    await page.until(f"{reported}?.startsWith('0 dead letters resent · 1 unknown')")
    await page.js("window.breaks = false; hold()")
    await resend_all()
    count = "asked.filter(one => one.endsWith('/messages/resend')).length"
    await page.until(f"{count} == 4")
    await page.js("location.hash = '#/events'")
    await page.js("release()")
    toast = "document.querySelector('.toast.warn')?.textContent"
    assert await page.until(toast) == (
        "billing: 1 dead letter resent · stopped because the page was left"
    )
    assert await page.js(count) == 4
    assert page.errors == []


async def test_console_login_with_an_account_of_a_provider(tmp_path: Path) -> None:
    settings = {
        "http_tokens_file": tokens_file(tmp_path / "tokens", TOKEN),
        "oidc_client_id": CLIENT,
        "oidc_client_secret_file": secret_file(tmp_path / "secret"),
        "oidc_roles": "operator=ops",
    }
    async with (
        Provider() as provider,
        FakeCluster(*replicas(), **settings, oidc_issuer=provider.url) as cluster,
        Browser(tmp_path) as browser,
    ):
        page = await browser.open(f"{cluster.url}/#/topics/T")
        link = f"{DIALOG}?.querySelector('a')"
        await page.until(link)
        provider.claims["groups"] = ["guests"]
        await page.js(f"{link}.click()")
        await page.until("document.querySelector('.toast.bad')?.textContent.includes('no role')")
        provider.claims["groups"] = ["ops"]
        await page.until(link)
        await page.js(f"{link}.click()")
        await page.until("document.getElementById('me').textContent == 'oidc:alice · operator'")
        assert await page.js("location.search + location.hash") == "#/topics/T"
        assert await page.js("document.cookie") == ""
        assert not await page.js(DIALOG)
