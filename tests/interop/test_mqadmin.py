"""mqadmin, ours and Apache's, against clusters of ours and of Apache's. One JVM for all of it.

First our page of examples, on a cluster that is new; then Apache's sub-commands against the same
cluster; then ours against an Apache broker that registered with the same name server.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import (
    BlockingConsumer,
    BlockingProducer,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageQueue,
    PullConfig,
)
from raftmq.mqadmin.commands import COMMANDS
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import loads_object
from tests.interop import apache
from tests.interop.jvm import fetch
from tests.interop.mqadmin import ApacheAdmin
from tests.interop.ours import classic, running
from tests.interop.test_java_client import Cluster, push_consumer
from tests.mqadmin.page import mqadmin, render, settle, skeleton, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "mqadmin.md"
WAIT_S = 240.0  # a bound against hanging
WAIT_MS = 240_000
pytestmark = pytest.mark.timeout(900)
OURS_ALONE = {
    "consume",
    "produce",
    "top",
    "raftStatus",
    "transferLeader",
    "members",
    "writers",
    "deleteWriter",
    "emptyTopic",
    "drainGroup",
    "drainStatus",
    "removeGroup",
    "copyDefinitions",
    "definitions",
    "spreadTopic",
    "balanceLeaders",
    "checkMove",
    "compare",
}
OWN_FLAGS = {("deleteExpiredCommitLog", "trustClock"), ("updateTopic", "keepMessages")}
OF_4X = {  # 5.3 has no tools any more for accounts that are asked for by these
    "updateAclConfig",
    "deleteAclConfig",
    "updateGlobalWhiteAddr",
    "getAclConfig",
    "clusterAclConfigVersion",
}
WHERE = "DefaultCluster"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Apache's tools are told once who leads: a cluster in which that does not change by itself.
    # Nor can they sign: they may change routes (205, 327) of brokers alone that do not.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_REGISTRATIONS_MUST_BE_SIGNED", "false")
        cluster = Cluster(tmp_path_factory.mktemp("mqadmin"), "registrationKeyFile=")
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def broker(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[apache.ApacheBroker]:
    """Apache's broker, with Apache's tools in the same JVM."""
    broker = apache.ApacheBroker(
        tmp_path_factory.mktemp("apache"),
        cluster.namesrv,
        brokerName="apache-a",
        timerWheelEnable="true",  # its deleteTopic fails without
    )
    broker.more_jars = fetch(apache.TOOLS_IVY_FILE, apache.TOOLS_JARS)
    # A Java consumer that begins with no queue looks again after 20 s, else.
    broker.more_properties["rocketmq.client.rebalance.waitInterval"] = "2000"
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def admin(broker: apache.ApacheBroker, cluster: Cluster) -> ApacheAdmin:
    assert broker.jvm is not None
    return ApacheAdmin(broker.jvm, cluster.namesrv)


def ours(cluster: Cluster, line: str) -> Any:
    """The answer of a sub-command of ours, which must succeed."""
    status, out, err = mqadmin(cluster.namesrv, *line.split(), "--json")
    assert status == 0, f"{line}: {status}\n{out}\n{err}"
    return json.loads(out)


def test_mqadmin_page_shows_the_printed_output(cluster: Cluster) -> None:
    new = render(cluster.namesrv)
    assert skeleton(new) == skeleton(PAGE.read_text()), "python -m tests.mqadmin.page"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"deleteTopic -c {WHERE} -t misspelt", f"cluster {WHERE} has no topic misspelt"),
        (f"deleteSubGroup -c {WHERE} -g misspelt", "there is no group misspelt at"),
    ],
)
def test_mqadmin_rejects_absent_subjects_with_an_error(
    cluster: Cluster, line: str, says: str
) -> None:
    status, _, err = mqadmin(cluster.namesrv, *line.split())
    assert (status, says in err) == (1, True), err


def test_mqadmin_flags_equal_apaches(admin: ApacheAdmin) -> None:
    for command in COMMANDS:
        if command.name in OF_4X:
            assert command.name not in admin.commands
        elif command.name not in OURS_ALONE:
            flags = {
                (flag.short, flag.long)
                for flag in command.flags
                if (command.name, flag.long) not in OWN_FLAGS
            }
            assert flags == admin.options(command.name), command.name


def test_apaches_mqadmin_works_at_our_cluster(admin: ApacheAdmin, cluster: Cluster) -> None:
    """Every sub-command of the list, in rounds: what each must have printed is in its round's."""
    leader = cluster.leader()["address"]
    with Traffic(cluster.namesrv, "tools", "readers") as traffic:
        printed = admin.main("updateTopic", "-c", WHERE, "-t", "tools", "-r", "4", "-w", "4")
        assert f"create topic to {leader} success" in printed
        traffic.start()
        for rounds, patterns in apache_rounds(leader, traffic):
            printed = admin.together(*rounds)
            for pattern in patterns:
                assert re.search(pattern, printed), f"{pattern}\n{printed}"
    check_resets_of_apache(admin, cluster, leader)
    printed = admin.main("deleteTopic", "-c", WHERE, "-t", "tools")
    assert "delete topic [tools] from NameServer success" in printed


class Traffic:
    """Ten messages in queue 1 of a topic, a producer, and a consumer that took them all."""

    def __init__(self, namesrv: str, topic: str, group: str) -> None:
        self.namesrv, self.topic, self.group = namesrv, topic, group
        self.taken = threading.Semaphore(0)
        self.sent: list[Any] = []
        self.clients: list[Any] = []

    def __enter__(self) -> "Traffic":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.stop()

    def start(self, broker_name: str = "broker-a") -> None:
        producer = BlockingProducer(f"{self.group}-p", self.namesrv)
        producer.start()
        self.clients.append(producer)
        queue = MessageQueue(self.topic, broker_name, 1)
        for number in range(10):
            message = Message(self.topic, b"body-%d" % number, tags="TagA", keys=f"key-{number}")
            self.sent.append(producer.send(message, WAIT_MS, queue))
        # Apache's broker lets a held pull lie when its group is moved.
        config = ConsumerConfig(
            consume_from=ConsumeFrom.FIRST_OFFSET, pull=PullConfig(suspend_ms=1000)
        )
        consumer = BlockingConsumer(self.group, self.namesrv, self.take, config=config)
        consumer.subscribe(self.topic, "TagA || TagB")
        consumer.start()
        self.clients.append(consumer)
        self.all_taken()
        settle(self.namesrv, consumer, self.group, self.topic)
        self.client_id = consumer.client_id

    def all_taken(self) -> None:
        for _ in range(10):
            assert self.taken.acquire(timeout=WAIT_S)

    def take(self, messages: list[Any]) -> None:
        for _ in messages:
            self.taken.release()


def apache_rounds(leader: str, traffic: Traffic) -> list[tuple[list[str], list[str]]]:
    unique, place = traffic.sent[3].msg_id, traffic.sent[3].offset_msg_id
    topic, group = f"-t {traffic.topic}", f"-g {traffic.group}"
    reads = {
        "clusterList": rf"broker-a +0 +{leader}",
        "clusterList -m": r"#InTotalYest",
        f"brokerStatus -b {leader}": r"raftRole +: leader",
        f"brokerConsumeStats -b {leader}": r"tools +readers +broker-a +1 +10 +10 +0",
        "topicList": r"(?m)^tools$",
        "topicList -c": rf"{WHERE} +tools +readers",
        f"topicStatus {topic}": r"broker-a +1 +0 +10 +20\d\d-",
        f"topicRoute {topic}": r'"writeQueueNums":4',
        f"topicClusterList {topic}": rf"(?m)^{WHERE}$",
        f"consumerProgress {group}": r"tools +broker-a +1 +10 +10 +0 +0 +20\d\d-",
        "consumerProgress": r"readers +1 +\S+ +PUSH +CLUSTERING",
        f"consumerConnection {group}": re.escape(traffic.client_id),
        f"producerConnection {group}-p {topic}": r"PYTHON|python",
        f"queryMsgById {topic} -i {place}": rf"OffsetID: +{place}",
        f"queryMsgByUniqueKey {topic} -i {unique}": rf"UNIQ_KEY={unique}",
        f"queryMsgByKey {topic} -k key-7": rf"{traffic.sent[7].msg_id} +1 +7",
        f"queryMsgByOffset {topic} -b broker-a -i 1 -o 5": rf"{traffic.sent[5].offset_msg_id}",
        f"printMsg {topic}": rf"MSGID: {traffic.sent[9].msg_id}",
        f"queryCq {topic} -q 1 -i 3 -c 1 -b {leader} {group}": r"max: 10, min: 0",
        f"getBrokerConfig -b {leader}": r"enableDLegerCommitLog += +true",
        "getNamesrvConfig": r"kvConfigPath +=",
        f"statsAll {topic}": r"tools +readers +0 +0\.\d\d +\d+\.\d\d +10 ",
    }
    changes = {
        f"updateSubGroup -c {WHERE} -g made": rf"create subscription group to {leader} success",
        f"updateBrokerConfig -b {leader} -k metricsSeriesMax -v 1999": r"update broker config suc",
        "updateNamesrvConfig -k logLevel -v INFO": r"update name server config success",
        "updateKvConfig -s SPACE -k key -v value": r"create or update kv config .* success",
        f"cleanExpiredCQ -b {leader}": r"success",
        f"deleteExpiredCommitLog -b {leader}": r"success",
        f"sendMessage {topic} -p hello -c TagB -b broker-a -i 2": r"broker-a +2 +SEND_OK",
        f"consumeMessage {topic} -b broker-a -i 1 -o 4 -c 1": rf"MSGID: {traffic.sent[4].msg_id}",
        f"consumerStatus {group} -i {traffic.client_id}": r"#Consumer MQ Detail#|PROP_CONSUMER",
        f"queryMsgById {topic} -i {place} {group} -d {traffic.client_id}": r"consumeResult=CR_SUC",
    }
    after = {
        "deleteKvConfig -s SPACE -k key": r"delete kv config from namespace success",
        "wipeWritePerm -b broker-a": r"wipe write perm of broker\[broker-a\].* OK, [1-9]",
        f"deleteSubGroup -b {leader} -g made": r"delete subscription group \[made\] .* success",
    }
    added = {"addWritePerm -b broker-a": r"add write perm of broker\[broker-a\].* OK, [1-9]"}
    last = {f"updateTopicPerm -c {WHERE} {topic} -p 4": rf"perm from 6 to 4 in {leader} success"}
    return [(list(part), list(part.values())) for part in (reads, changes, after, added, last)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A cluster of one broker group, and its master or leader."""

    where: str
    address: str
    slaves: int
    files: Path

    def changes(self) -> dict[str, str]:
        """Return lines for Apache's mqadmin, and what each prints."""
        self.files.mkdir()
        topics, groups = self.files / "topics.json", self.files / "groups.json"
        beans = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2} for name in "AB"]
        beans[1]["attributes"] = {"+message.type": "FIFO"}
        topics.write_text(json.dumps(beans))
        groups.write_text(json.dumps([{"groupName": "listed-a"}, {"groupName": "listed-b"}]))
        to = re.escape(self.address)
        return {
            f"updateTopic -b {self.address} -t C -a +message.type=DELAY": f"create topic to {to} s",
            f"updateTopicList -b {self.address} -f {topics}": f"topic config to {to} success",
            f"updateSubGroupList -b {self.address} -f {groups}": f"group config to {to} success",
            f"cleanUnusedTopic -b {self.address}": "success",
        }

    def reads(self) -> dict[str, str]:
        counts = rf"#SlaveNum\t{self.slaves}\s+#InSyncSlaveNum\t{self.slaves}"
        ends = rf"{re.escape(self.address)}\s+#MasterCommitLogMaxOffset\t\d+\s+{counts}"
        exported = f"export {re.escape(str(self.files))}"
        return {
            "getConsumerConfig -g listed-b": "listed-b",
            f"producer -b {self.address}": "",
            f"haStatus -b {self.address}": rf"#MasterAddr\t{ends}",
            f"exportConfigs -c {self.where} -f {self.files}": f"{exported}/configs.json success",
            f"exportMetrics -c {self.where} -f {self.files}": f"{exported}/metrics.json success",
            f"exportMetadata -c {self.where} -f {self.files}": f"{exported}/metadata.json success",
        }

    def check(self) -> None:
        """Assert what was exported."""
        exported = json.loads((self.files / "metadata.json").read_text())
        table = exported["topicConfigTable"]
        assert not {"SCHEDULE_TOPIC_XXXX", "TBW102"} & set(table)
        kinds = {name: table[name]["attributes"].get("message.type") for name in "ABCD"}
        assert kinds == {"A": None, "B": "FIFO", "C": "DELAY", "D": "TRANSACTION"}
        assert {"listed-a", "listed-b"} <= set(exported["subscriptionGroupTable"])
        configs = json.loads((self.files / "configs.json").read_text())
        assert configs["clusterScale"]["slaveBrokerSize"] == self.slaves


def test_apaches_mqadmin_exports_and_lists_our_cluster(
    admin: ApacheAdmin, cluster: Cluster, tmp_path: Path
) -> None:
    """In a Raft group and in classic mode: what else Apache's tools ask a broker."""
    raft = Asked(WHERE, cluster.leader()["address"], 2, tmp_path / "of-raft")
    settings = {"namesrvAddr": cluster.namesrv, "brokerIP1": "127.0.0.1"}
    names = {"brokerName": "classic-a", "brokerClusterName": "ClassicCluster"}
    with running(lambda: classic(tmp_path, **settings, **names)) as group:
        wait_until(lambda: "classic-a" in json.dumps(ours(cluster, "clusterList")))
        alone = Asked("ClassicCluster", group.master.address, 0, tmp_path / "of-classic")
        admin.main("updateTopic", "-b", raft.address, "-t", "Warm")  # knows the name server now
        for address in (raft.address, alone.address):
            ours(cluster, f"updateTopic -b {address} -t D -a +message.type=TRANSACTION")
            ours(cluster, f"updateTopicPerm -b {address} -t D -p 4")  # which leaves it
        for lines in (raft.changes() | alone.changes(), raft.reads() | alone.reads()):
            printed = admin.together(*lines)
            for line, pattern in lines.items():
                assert re.search(pattern, printed), f"{line}: {pattern}\n{printed}"
    raft.check()
    alone.check()


# Changes of attributes, one after the other; the first one makes the topic.
CHANGES = {
    "Made": (
        "+message.type=FIFO", "", "+message.type=fifo", "+color=red", "+queue.type=SimpleCQ",
        "-reserve.time", "message.type=FIFO", "+message.type", "+message.type=MIXED",
        "+message.type=DELAY,+message.type=FIFO", "+message.type=DELAY,+reserve.time=-1",
        "+message.type=UNSPECIFIED", "-message.type", "-message.type", "-reserve.time",
    ),
    "NotMade": ("-message.type", "+color=red", "+message.type=none", "message.type=FIFO"),
    "MadeWhole": ("+queue.type=SimpleCQ,+cleanup.policy=DELETE", "-queue.type"),
}  # fmt: skip


def test_topic_attributes_change_as_at_apaches(
    broker: apache.ApacheBroker, cluster: Cluster
) -> None:
    """The same changes are taken and refused, and leave the same attributes."""

    async def attempted(address: str) -> list[tuple[str, str, bool, Any]]:
        client, found = RemotingClient(), []

        async def ask(code: int, ext: dict[str, str]) -> Any:
            return await client.invoke(address, RemotingCommand.request(code, ext), WAIT_MS)

        try:
            for topic, changes in CHANGES.items():
                for change in changes:
                    header = TopicHeader(topic, 4, 4, 6, attributes=change)
                    put = await ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
                    has = await ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
                    there = loads_object(has.body)["attributes"] if has.code == 0 else None
                    found.append((topic, change, put.code == 0, there))
        finally:
            await client.close()
        return found

    theirs = asyncio.run(attempted(broker.address))
    assert asyncio.run(attempted(cluster.leader()["address"])) == theirs
    assert {taken for _, _, taken, _ in theirs} == {True, False}


def check_resets_of_apache(admin: ApacheAdmin, cluster: Cluster, leader: str) -> None:
    """The consumer is gone: these move it in its absence."""

    def offsets(group: str) -> dict[int, int]:
        rows = ours(cluster, f"consumerProgress -g {group} -t tools")["queues"]
        return {row["queue"]: row["consumerOffset"] for row in rows}

    printed = admin.main("resetOffsetByTime", "-g", "readers", "-t", "tools", "-s", "0")
    assert re.search(r"broker-a +1 +0", printed)
    assert offsets("readers") == {0: 0, 1: 0, 2: 0, 3: 0}
    admin.main("skipAccumulatedMessage", "-g", "readers", "-t", "tools")
    assert offsets("readers") == {0: 0, 1: 10, 2: 1, 3: 0}
    place = ("-b", leader, "-q", "1", "-o", "6")
    admin.main("resetOffsetByTime", "-g", "readers", "-t", "tools", "-s", "0", *place)
    assert offsets("readers")[1] == 6
    admin.main("cloneGroupOffset", "-s", "readers", "-d", "cloned", "-t", "tools")
    assert offsets("cloned") == offsets("readers")


def test_running_java_consumer_follows_an_offset_reset(
    broker: apache.ApacheBroker, cluster: Cluster
) -> None:
    assert broker.jvm is not None
    ours(cluster, f"updateTopic -c {WHERE} -t rewound -r 1 -w 1")
    with BlockingProducer("rewound-p", cluster.namesrv) as producer:
        for number in range(10):
            producer.send(Message("rewound", b"x", keys=f"key-{number}"), WAIT_MS)
    consumer, listener = push_consumer(broker.jvm, cluster, "rewinders", "rewound", "*")
    keys = {f"key-{n}" for n in range(10)}

    def all_came() -> bool:
        return {row[2] for row in listener.received} >= keys

    try:
        listener.wait_for(all_came)
        for _ in range(2):
            listener.received.clear()
            ours(cluster, "resetOffsetByTime -g rewinders -t rewound -s 0")
            listener.wait_for(all_came)
        assert {row[2] for row in listener.received} == keys
    finally:
        consumer.shutdown()


def test_our_mqadmin_works_at_apaches_broker(broker: apache.ApacheBroker, cluster: Cluster) -> None:
    place, there = f"-b {broker.address}", "-c InteropCluster"
    ours(cluster, f"updateTopic {place} -t theirs -r 4 -w 4")
    wait_until(lambda: mqadmin(cluster.namesrv, *"topicRoute -t theirs".split())[0] == 0)
    ours(cluster, f"updateSubGroup {there} -g guests -r 3")
    with Traffic(cluster.namesrv, "theirs", "guests") as traffic:
        traffic.start("apache-a")
        looked = {line: ours(cluster, line) for line in looks(broker.address, traffic)}
        for line, wanted in looks(broker.address, traffic).items():
            assert wanted(looked[line]), f"{line}: {looked[line]}"
        assert traffic.taken.acquire(timeout=WAIT_S)  # what it was given directly
        ours(cluster, "resetOffsetByTime -g guests -t theirs -s 0")
        traffic.all_taken()  # again: the running consumer followed
    for line in deeds(broker.address):
        ours(cluster, line)
    rows = ours(cluster, "consumerProgress -g copies -t theirs")["queues"]
    assert {row["queue"]: row["consumerOffset"] for row in rows} == {0: 0, 1: 10, 2: 0, 3: 0}
    ours(cluster, f"deleteSubGroup {there} -g guests")
    ours(cluster, f"deleteTopic {there} -t theirs")
    wait_until(lambda: mqadmin(cluster.namesrv, *"topicRoute -t theirs".split())[0] == 1)


def looks(address: str, traffic: Traffic) -> dict[str, Any]:
    """Line → whether its answer is what it must be."""
    sent = traffic.sent[3]

    def queue(rows: list[dict[str, Any]], number: int = 1) -> dict[str, Any]:
        return next(row for row in rows if row["queue"] == number)

    return {
        "clusterList -c InteropCluster": lambda rows: rows[0]["address"] == address,
        "clusterList -m -c InteropCluster": lambda rows: "inTotalToday" in rows[0],
        f"brokerStatus -b {address}": lambda values: "brokerVersionDesc" in values,
        f"brokerConsumeStats -b {address}": lambda parts: parts["queues"],
        "topicList": lambda rows: {"topic": "theirs"} in rows,
        "topicList -c": lambda rows: [r for r in rows if r["group"] == "guests"],
        "topicStatus -t theirs": lambda rows: queue(rows)["maxOffset"] == 10,
        "topicClusterList -t theirs": lambda rows: rows == [{"cluster": "InteropCluster"}],
        "consumerProgress": lambda rows: [r for r in rows if r["group"] == "guests"],
        "consumerProgress -g guests -t theirs": (
            lambda parts: queue(parts["queues"])["consumerOffset"] == 10
        ),
        "consumerProgress -g guests -s true": (
            lambda parts: [r for r in parts["queues"] if r["client"]]
        ),
        "consumerConnection -g guests": (
            lambda parts: parts["clients"][0]["clientId"] == traffic.client_id
        ),
        "consumerStatus -g guests": lambda parts: parts["subscriptions"] == {"same": True},
        "producerConnection -g guests-p -t theirs": lambda rows: len(rows) == 1,
        f"queryMsgById -t theirs -i {sent.offset_msg_id}": (
            lambda parts: (
                parts["message"]["body"] == "body-3" and parts["consumers"]["guests"] == "CONSUMED"
            )
        ),
        f"queryMsgByUniqueKey -t theirs -i {sent.msg_id}": (
            lambda parts: parts["message"]["offset"] == 3
        ),
        f"queryMsgByUniqueKey -t theirs -i {sent.msg_id} -g guests -d {traffic.client_id}": (
            lambda values: values["consumeResult"] == "CR_SUCCESS"
        ),
        "queryMsgByKey -t theirs -k key-7": lambda rows: rows[0]["offset"] == 7,
        "queryMsgByOffset -t theirs -b apache-a -i 1 -o 5": lambda v: v["body"] == "body-5",
        f"queryCq -t theirs -q 1 -i 3 -b {address}": lambda parts: len(parts["units"]) == 7,
        "printMsg -t theirs": lambda rows: len(rows) == 10,
        "consumeMessage -t theirs -b apache-a -i 1 -o 4 -c 2": lambda rows: len(rows) == 2,
        f"getBrokerConfig -b {address}": lambda v: v["brokerClusterName"] == "InteropCluster",
        "statsAll -t theirs": lambda rows: rows[0]["behind"] == 0,
    }


def deeds(address: str) -> list[str]:
    """The commands that must succeed, in this order."""
    return [
        "skipAccumulatedMessage -g guests -t theirs",
        f"resetOffsetByTime -g guests -t theirs -s 0 -b {address} -q 1 -o 6",
        "skipAccumulatedMessage -g guests -t theirs",
        "cloneGroupOffset -s guests -d copies -t theirs",
        f"updateTopicPerm -b {address} -t theirs -p 6",
        f"updateBrokerConfig -b {address} -k fileReservedTime -v 48",
        f"cleanExpiredCQ -b {address}",
        f"deleteExpiredCommitLog -b {address}",
        "definitions -c InteropCluster --align",
        "spreadTopic -c InteropCluster -t theirs --queues 2 --wait 0",
        "spreadTopic -c InteropCluster -t theirs --queues 4 --wait 0",
        "balanceLeaders -c InteropCluster",
        "wipeWritePerm -b apache-a",
        "addWritePerm -b apache-a",
        "sendMessage -t theirs -p more -b apache-a -i 2",
    ]
