"""docs/mqadmin.md: every sub-command with its flags, as declared, and an example that was run.

    python -m tests.mqadmin.page NAMESRV > docs/mqadmin.md

makes it anew against a Raft cluster of three that has just been made (mqcluster up). A test does
the same and compares: the words and columns, not times, ids, numbers or where things happened.
"""

import asyncio
import json
import re
import sys
import tempfile
import threading
import time

from click.testing import CliRunner

from raftmq.client import (
    BlockingConsumer,
    BlockingProducer,
    ExactlyOnceWriter,
    Message,
    MessageQueue,
)
from raftmq.mqadmin.cli import main
from raftmq.mqadmin.command import Kind
from raftmq.mqadmin.commands import COMMANDS
from raftmq.mqadmin.runner import UNKNOWN, UNREACHABLE
from tests.waiting import wait_until

HEAD = """\
# mqadmin

Administers a cluster of ours or of Apache RocketMQ's over the wire protocol. Sub-commands and
flags are those of Apache's `mqadmin` 5.3, for accounts those of 4.9; `consume`, `produce`, `top`,
`context`, `completion`, `raftStatus`, `transferLeader`, `members`, `drainGroup`, `drainStatus`,
`removeGroup`, `emptyTopic`, `writers`, `deleteWriter`, `copyDefinitions`, `definitions`,
`spreadTopic`, `balanceLeaders`, `checkMove` and `compare` are ours.

```
mqadmin COMMAND [FLAGS] -n HOST:PORT[;HOST:PORT]
mqadmin help COMMAND
```

- `-n`, `--namesrvAddr`: the name servers; default `NAMESRV_ADDR`, or a context's.
- With access control ([Security](security.md)): `--accessKey`, `--secretKey` and `--securityToken`
  before the sub-command, or `RAFTMQ_ACCESS_KEY`, `RAFTMQ_SECRET_KEY` and `RAFTMQ_SECURITY_TOKEN`,
  or a context's, or Apache's `conf/tools.yml` (`--toolsFile`, or below `ROCKETMQ_HOME`).
- `-o`, `--output`: `table`, `json` or `yaml`, a document with the same data. `--json` is `--output
  json`. For commands of Apache's with a flag `-o` of their own only the long form works.
- `--watch SECONDS`, on every command that only reads, repeats it until Ctrl-C, in JSON a line
  each, in YAML a document. Missing data is reported and requested again.
- Exit status: 0 done; 1 rejected, missing, or answered only in part; 2 wrong usage; 3 no answer; 4
  unknown whether it was done; 5 run it again later for the rest; 130 interrupted. An error is a
  single line on stderr. After `--watch`, `consume --follow` and `top` Ctrl-C gives 0.

Changes of topics, groups and offsets are commands in each group's log: an answered change survives
a failover exactly. Running consumers follow a reset (`resetOffsetByTime`,
`skipAccumulatedMessage`, `cloneGroupOffset`) with their next pull under any leader; their earlier
commits have no effect. `updateBrokerConfig` and `updateNamesrvConfig` change live keys
(docs/configuration.md) until the process ends.

A broker group without a leader can be neither changed nor read. A change that includes it is
rejected before any group is changed: `nobody leads broker-a at the moment`. `consumerProgress`,
`topicStatus`, `topicList -c`, `writers` and `statsAll` print that text for the group, without a
total, and end with status 1. `resetOffsetByTime` and `skipAccumulatedMessage` move a consumer
group in the broker groups that have it; each further broker group gets a line with the reason, and
the status is 1. `top` shows such texts in place of a lag.

## Contexts

A context is a name for a cluster, with its name servers, an account and TLS settings.

```
mqadmin context add prod -n '10.0.0.1:9876;10.0.0.2:9876' --accessKey ops --secretKey - --use
mqadmin context add test -n 127.0.0.1:9876
mqadmin topicList                        # of prod
mqadmin topicList --context test
mqadmin context list
mqadmin context use test                 # also: show, remove
```

Precedence for each of name servers, account (as a whole), TLS settings and registration key:

1. the flags `-n`, `--accessKey`, …;
2. the context of `--context`, before or after the sub-command;
3. the variables `NAMESRV_ADDR`, `RAFTMQ_ACCESS_KEY`, …;
4. the context of the variable `RAFTMQ_CONTEXT`, else the active context, unless `-n` or
   `NAMESRV_ADDR` select a different cluster;
5. for the account, Apache's `conf/tools.yml`.

Contexts are in `~/.config/raftmq/contexts.json` (or below `XDG_CONFIG_HOME`), readable by the
owner only (mode 600). `--secretKey -` asks for the secret, or reads it from standard input, so
that it is in no shell history and no list of processes. [`mqaudit --context`](audit.md) uses the
same file.

## Completion and man pages

```
mqadmin completion bash --install        # or zsh, fish
```

completes sub-commands, flags, choices and contexts of all raftmq commands. For bash and zsh it
writes a file into `~/.local/share/raftmq` and a line into `~/.bashrc` or `~/.zshrc`; for fish,
files into `~/.config/fish/completions`. Without `--install` it prints the script.

The man pages (`man mqadmin`, `man mqcluster`, …) are part of the wheel (`share/man/man1`),
generated from the commands (`make man`).

The examples below ran in this order on a new cluster of three brokers (`mqcluster up`). `python -m
tests.mqadmin.page` generates this page, and a test compares it.
"""
WAIT_S = 240.0  # a bound against hanging, not an expectation
MS = 1_700_000_000_000  # a time in the past: before every message
SHOWN_LINES_MAX = 14  # of a long answer
UNIQUE, PLACE, CLIENT, LEADER, FOLLOWER = "@UNIQUE", "@PLACE", "@CLIENT", "@LEADER", "@FOLLOWER"
FILE, FILE_SHOWN = "@FILE", "lines.txt"

# In this order, against one cluster; in the page they stand in the order of the commands.
EXAMPLES = (
    "clusterList",
    f"brokerStatus -b {LEADER}",
    "updateTopic -c DefaultCluster -t orders -r 4 -w 4",
    "topicRoute -t orders",
    "topicClusterList -t orders",
    "updateSubGroup -c DefaultCluster -g billing -r 3",
    "sendMessage -t orders -p hello -k order-1 -c new -b broker-a -i 0",
    "sendMessage -t orders -p again -k order-2 -c paid -b broker-a -i 0",
    f"produce orders {FILE} --queue broker-a:2 --key line",
    "consume orders --from first",
    "consume orders --count 1 --format json",
    "topicStatus -t orders",
    "printMsg -t orders",
    "consumeMessage -t orders -b broker-a -i 0 -o 0 -c 1",
    "queryMsgByKey -t orders -k order-1",
    f"queryMsgById -t orders -i {PLACE}",
    f"queryMsgByUniqueKey -t orders -i {UNIQUE}",
    "queryMsgByOffset -t orders -b broker-a -i 0 -o 1",
    "queryCq -t orders -q 0 -i 0",
    "consumerConnection -g billing",
    f"consumerStatus -g billing -i {CLIENT}",
    "producerConnection -g shop -t orders",
    "consumerProgress -g billing -t orders",
    "consumerProgress",
    f"brokerConsumeStats -b {LEADER}",
    "statsAll -t orders",
    "topicList -c",
    f"resetOffsetByTime -g billing -t orders -s {MS}",
    "skipAccumulatedMessage -g billing -t orders",
    "cloneGroupOffset -s billing -d audit -t orders",
    "writers -t orders",
    "deleteWriter -t orders -w totals",
    "updateTopicPerm -c DefaultCluster -t orders -p 4",
    f"getBrokerConfig -b {LEADER}",
    f"updateBrokerConfig -b {LEADER} -k logLevel -v INFO",
    f"cleanExpiredCQ -b {LEADER}",
    f"deleteExpiredCommitLog -b {LEADER}",
    "getNamesrvConfig",
    "updateNamesrvConfig -k logLevel -v INFO",
    "updateKvConfig -s MINE -k key -v value",
    "deleteKvConfig -s MINE -k key",
    "wipeWritePerm -b broker-a",
    "addWritePerm -b broker-a",
    "raftStatus",
    "top --once",
    "members -b broker-a",
    "members -b broker-a -o add -i n3 -a 127.0.0.1:1 --force",
    "members -b broker-a -o remove -i n3",
    "members -b broker-a -o prefer -i n1",
    "members -b broker-a -o prefer",
    "drainGroup -b broker-a",
    "drainStatus -b broker-a",
    "drainGroup -b broker-a --cancel",
    f"transferLeader -b broker-a -t {FOLLOWER}",
    "definitions",
    "spreadTopic -t orders --queues 8 --dryRun",
    "balanceLeaders --plan",
    "setConsumeMode -c DefaultCluster -g billing -t orders -m POP",
    "emptyTopic -c DefaultCluster -t orders",
    "deleteSubGroup -c DefaultCluster -g billing",
    "deleteTopic -c DefaultCluster -t orders",
)


def mqadmin(namesrv, *arguments):
    """Exit status, and what it printed on stdout and stderr. It gives a server 3 s: one that was
    too busy is asked again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        result = CliRunner().invoke(main, [*arguments, "-n", namesrv], catch_exceptions=False)
        if result.exit_code not in (UNREACHABLE, UNKNOWN) or time.monotonic() > deadline:
            return result.exit_code, result.stdout, result.stderr


class Examples:
    """Runs them; `consumer` and `producer` are there as long as it is."""

    def __init__(self, namesrv):
        self.namesrv = namesrv
        self.known = {}
        self.consumed = threading.Semaphore(0)
        self.consumer = None
        self.producer = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.quiet()

    def quiet(self):
        for client in (self.consumer, self.producer):
            if client is not None:
                client.stop()
        self.consumer = self.producer = None

    def run(self, example):
        """(command line as shown, what it printed)."""
        name = example.split()[0]
        if FILE in example:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write("a line\nand another\n")
                file.flush()
                real, out = self.run(example.replace(FILE, file.name))
                return real.replace(file.name, FILE_SHOWN), out
        if name == "consumerConnection":
            self._appear()
        if name == "resetOffsetByTime":
            self.quiet()
        if name == "writers":
            asyncio.run(self._write())
        real = example
        for mark, value in self._marks(example).items():
            real = real.replace(mark, value)
        status, out, err = mqadmin(self.namesrv, *real.split())
        assert status == 0, f"{real}: {status}\n{out}\n{err}"
        if name == "updateTopic":  # name servers hear of it a moment later
            wait_until(lambda: mqadmin(self.namesrv, "topicRoute", "-t", "orders")[0] == 0)
        if name == "sendMessage" and UNIQUE not in self.known:
            self.known[UNIQUE] = out.split()[0]
            _, text, _ = mqadmin(
                self.namesrv, *f"queryMsgByUniqueKey -t orders -i {out.split()[0]}".split()
            )
            (self.known[PLACE],) = re.findall(r"offsetMsgId +(\S+)", text)
        return real, out

    def _marks(self, example):
        if LEADER in example or FOLLOWER in example:
            leader, *followers = wait_until(self._replicas)
            self.known |= {LEADER: leader[1], FOLLOWER: followers[0][2]}
        return self.known

    def _replicas(self):
        """Rows of raftStatus, the leader's first; None while it does not show who leads."""
        _, text, _ = mqadmin(self.namesrv, "raftStatus")
        rows = [line.split() for line in text.splitlines() if line.startswith("broker-a")]
        rows.sort(key=lambda row: row[3] != "leader")
        return rows if [row[3] for row in rows] == ["leader", "follower", "follower"] else None

    def _appear(self):
        """A consumer and a producer, and both messages consumed and committed."""
        self.producer = BlockingProducer("shop", self.namesrv)
        self.producer.start()
        last = Message("orders", b"one more", tags="new", keys="order-3")
        self.producer.send(last, int(WAIT_S * 1000), MessageQueue("orders", "broker-a", 1))
        self.consumer = BlockingConsumer("billing", self.namesrv, self._listen)
        self.consumer.subscribe("orders", "*")
        self.consumer.start()
        self.known[CLIENT] = self.consumer.client_id
        mqadmin(self.namesrv, *"resetOffsetByTime -g billing -t orders -s 0".split())
        for _ in range(3):
            assert self.consumed.acquire(timeout=WAIT_S)
        settle(self.namesrv, self.consumer, "billing", "orders")

    async def _write(self):
        async with ExactlyOnceWriter("totals", "orders", self.namesrv) as writer:
            await writer.write(writer.queues[0], 20261121, 0, [Message("orders", b"total 3")])

    def _listen(self, messages):
        for _ in messages:
            self.consumed.release()


def settle(namesrv, consumer, group, topic):
    """Have it commit until nothing is left, which is a moment after its listener has returned."""

    def all_committed():
        consumer.commit()
        line = f"consumerProgress -g {group} -t {topic} --json"
        status, out, _ = mqadmin(namesrv, *line.split())
        return status == 0 and json.loads(out)["total"]["diffTotal"] == 0

    wait_until(all_committed)


def render(namesrv):
    """The whole page, with places as they would be by default."""
    shown: dict[str, list[list[str]]] = {}
    with Examples(namesrv) as examples:
        for example in EXAMPLES:
            real, out = examples.run(example)
            lines = [line.rstrip() for line in out.rstrip().splitlines()]
            if len(lines) > SHOWN_LINES_MAX:
                lines = [*lines[:SHOWN_LINES_MAX], "…"]
            shown.setdefault(example.split()[0], []).append([f"$ mqadmin {real}", *lines])
    parts = [HEAD]
    for command in COMMANDS:
        usage = " ".join([command.name, *map(shown_positional, command.positionals)])
        parts.append(f"\n## {usage}\n\n{command.doc}\n\n{flags(command)}")
        if command.runs.startswith(("acl:", "definitions:copy", "check_move:", "compare:")):
            continue  # the examples' cluster is one group without access control
        if command.name == "removeGroup":
            continue  # of the only group
        for lines in shown.pop(command.name):
            parts.append("\n```\n" + "\n".join(lines) + "\n```\n")
    assert not shown, f"no commands: {shown}"
    return re.sub(r"/\S*/(namesrv|n\d)/", r"/var/lib/raftmq/\1/", "".join(parts))


def shown_positional(positional):
    """A value without a flag, as the usage line has it."""
    name = positional.name.upper()
    return f"[{name}]…" if positional.repeated else name


def flags(command):
    """The table of its flags, without those that all commands have."""
    if not command.flags:
        return "No flags of its own.\n"
    rows = ["| flag | | |\n|---|---|---|\n"]
    for flag in command.flags:
        names = ", ".join([f"`-{flag.short}`"] * bool(flag.short) + [f"`--{flag.long}`"])
        kind = "" if flag.kind is Kind.SWITCH else flag.kind.value
        if flag.choices:
            kind = "&#124;".join(flag.choices)
        needed = ", required" if flag.required else ""
        doc = flag.doc.replace("|", "\\|")
        rows.append(f"| {names} | {kind}{needed} | {doc} |\n".replace("true|false", "true\\|false"))
    return "".join(rows)


def skeleton(page):
    """Return the part of the page that does not depend on when and where its examples were run."""
    page = re.sub(r"\b[0-9A-F]{32,40}\b", "#", page)
    page = re.sub(r"\d+\.\d+\.\d+\.\d+@[\d#]+", "#", page)
    page = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+", "#", page)
    page = re.sub(r"\bn\d\b", "#", page)
    page = re.sub(r"\d[\d.:,]*", "#", page)
    page = re.sub(r"[─ \t]+", " ", page)
    return [line.strip() for line in page.splitlines()]


if __name__ == "__main__":
    print(render(sys.argv[1]), end="")
