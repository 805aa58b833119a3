"""mqadmin, ours and Apache's, against clusters of ours and of Apache's. One JVM for all of it.

First our page of examples, on a cluster that is new; then Apache's sub-commands against the same
cluster; then ours against an Apache broker that registered with the same name server.
"""

import json
import re
import threading
from collections.abc import Iterator
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
from tests.interop import apache
from tests.interop.jvm import fetch
from tests.interop.mqadmin import ApacheAdmin
from tests.interop.test_java_client import Cluster, mqcluster, push_consumer
from tests.mqadmin.page import mqadmin, render, settle, skeleton, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "mqadmin.md"
WAIT_S = 240.0  # a bound against hanging
WAIT_MS = 240_000
pytestmark = pytest.mark.timeout(900)
OURS_ALONE = {"raftStatus", "transferLeader", "members", "writers", "deleteWriter"}
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
    cluster = Cluster(tmp_path_factory.mktemp("mqadmin"), "registrationKeyFile=")
    yield cluster
    mqcluster("down", "--dir", cluster.directory)


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


def test_the_page_shows_what_is_printed(cluster: Cluster) -> None:
    new = render(cluster.namesrv)
    assert skeleton(new) == skeleton(PAGE.read_text()), "python -m tests.mqadmin.page"


def test_flags_are_apaches(admin: ApacheAdmin) -> None:
    for command in COMMANDS:
        if command.name in OF_4X:
            assert command.name not in admin.commands
        elif command.name not in OURS_ALONE:
            flags = {(flag.short, flag.long) for flag in command.flags}
            assert flags == admin.options(command.name), command.name


def test_apaches_tools_against_our_cluster(admin: ApacheAdmin, cluster: Cluster) -> None:
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


def test_a_running_java_consumer_follows_a_reset(
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


def test_ours_against_apaches_broker(broker: apache.ApacheBroker, cluster: Cluster) -> None:
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
        "wipeWritePerm -b apache-a",
        "addWritePerm -b apache-a",
        "sendMessage -t theirs -p more -b apache-a -i 2",
    ]
