"""A broker's /metrics: in a group whose leader dies, and at the limits."""

from raftmq.broker.admin import metrics
from raftmq.broker.broker import open_broker
from raftmq.remoting.codes import ResponseCode
from raftmq.store.disk import OsDisk
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic
from tests.ops.scrape import Scrape
from tests.waiting import until

FOLLOWED = {"raft_peer_match_index", "raft_peer_lag_frames", "raft_peer_behind_bytes"}


def scraped(broker):
    return Scrape(broker.metrics.render()[0].decode())


async def test_metrics_of_a_group_whose_leader_dies(tmp_path):
    async with Group(tmp_path, 3, flushDiskType="SYNC_FLUSH") as group:
        leader = await group.leading()
        name = leader.config.dleger_self_id
        await group.create_topic(leader, "T")
        for _ in range(3):
            assert (await group.send(leader, "T")).code == 0
        survivors = [other for other in group.names if other != name]
        refused = await group.send(group.brokers[survivors[0]], "T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await group.pull(leader, "T", 0)
        await until(lambda: scraped(leader).sum("raft_peer_match_index", peer=survivors[0]) > 0)
        before = {n: scraped(broker) for n, broker in group.brokers.items()}

        seen = before[name]
        assert seen.sum("raft_role", role="leader", node=name, broker="group-a") == 1
        assert seen.sum("rocketmq_leading") == 1
        assert seen.sum("rocketmq_sends_total", code="SUCCESS") == 3
        assert seen.sum("rocketmq_sends_total", reason="OUTCOME_UNKNOWN") == 0
        assert seen.sum("rocketmq_append_duration_seconds_count") == 3 + 2  # one after the other
        assert seen.sum("rocketmq_commitlog_fsync_duration_seconds_count") >= 3
        assert seen.sum("rocketmq_messages_in_total") == 3 + 2  # records of who made the topic
        assert seen.sum("rocketmq_pulls_total", code="SUCCESS") == 1
        assert seen.sum("rocketmq_received_bytes_total") > 0
        assert seen.sum("rocketmq_requests_total", request="UPDATE_AND_CREATE_TOPIC") == 1
        assert {sample[1]["peer"] for sample in seen.samples if sample[0] == "raft_peer_connected"}
        assert seen.sum("raft_peer_match_index", peer=survivors[0]) > 0
        follower = before[survivors[0]]
        assert follower.sum("raft_role", role="follower") == 1
        assert follower.sum("rocketmq_sends_total", reason="NOT_LEADER") == 1
        assert "raft_peer_match_index{" not in follower.text

        await group.kill(name)
        heir = await group.leading()
        assert (await group.send(heir, "T")).code == 0
        new = heir.config.dleger_self_id
        await until(lambda: scraped(heir).sum("raft_peer_connected", peer=name) == 0)
        after = scraped(heir)
        assert after.sum("raft_term") > before[new].sum("raft_term")
        assert after.sum("raft_role", role="leader") == 1
        assert after.sum("raft_leader_changes_total") > before[new].sum("raft_leader_changes_total")
        assert after.sum("raft_elections_total") > before[new].sum("raft_elections_total")
        assert after.sum("raft_commit_index") > before[new].sum("raft_commit_index")
        assert after.sum("rocketmq_sends_total", code="SUCCESS") == 1
        # The dead one has told the heir nothing: nobody knows how far it is behind.
        (third,) = {*survivors} - {new}
        await until(lambda: "raft_peer_lag_frames{" in scraped(heir).text)
        reported = [sample for sample in scraped(heir).samples if sample[0] in FOLLOWED]
        assert {sample[0] for sample in reported} == FOLLOWED
        assert {sample[1]["peer"] for sample in reported} == {third}
        assert after.sum("raft_leadership_lost_total") == 0


async def test_leadership_lost_metric_has_a_reason(tmp_path):
    soon = {"electionTimeoutMinMs": 800, "electionTimeoutMaxMs": 1_200}
    async with Group(tmp_path, 3, **soon) as group:
        name = await group.leader()
        leader = group.brokers[name]
        for other in [other for other in group.names if other != name]:
            await group.kill(other)
        await until(lambda: not leader.roles.leading)
        assert scraped(leader).sum("raft_leadership_lost_total", reason="no_quorum") == 1
        assert scraped(leader).sum("raft_leader_known") == 0


async def test_consumer_lag_metrics_are_limited_in_series(tmp_path, monkeypatch):
    async with Group(tmp_path, 1, metricsSeriesMax=2) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        for _ in range(4):
            assert (await group.send(broker, "T")).code == 0
        for number, consumer in enumerate(("a", "b", "c")):
            await group.commit(broker, "T", 0, number, group=consumer)
        await until(lambda: len(broker.state.offsets.offsets) == 3)
        scrape = scraped(broker)
        assert scrape.sum("rocketmq_consumer_lag_messages", group="a", topic="T") == 4
        assert scrape.sum("rocketmq_consumer_lag_messages", group="b", topic="T") == 3
        assert 'group="c"' not in scrape.text
        assert scrape.sum("rocketmq_consumer_lag_omitted") == 1
        monkeypatch.setattr(metrics, "LAG_QUEUES_MAX", 1)
        scrape = scraped(broker)
        assert scrape.sum("rocketmq_consumer_lag_messages") in (2, 3, 4)  # of the first alone
        assert scrape.sum("rocketmq_consumer_lag_omitted") == 2


async def test_broker_can_be_scraped_before_it_has_started(tmp_path):
    group = Group(tmp_path, 1)
    broker = await open_broker(group.config("n0"), OsDisk(str(tmp_path / "n0")))
    text = scraped(broker).text
    assert 'rocketmq_leading{broker="group-a",cluster="TestCluster",node="n0"} 0.0' in text
    assert "raft_term" not in text
    await broker.stop()
    for listener in group.sockets.values():
        listener.close()


async def test_metrics_of_a_master_and_its_slave(tmp_path):
    async with Classic(tmp_path) as group:
        await group.followed()
        await group.create_topic(group.master, "T")
        assert (await group.send(group.master, "T")).code == 0
        master, slave = scraped(group.master), scraped(group.slave)
        for scrape in (master, slave):
            assert "raft_term" not in scrape.text
        assert (master.sum("rocketmq_leading"), slave.sum("rocketmq_leading")) == (1, 0)
        assert master.sum("rocketmq_ha_slaves_in_sync") == 1
        assert master.sum("rocketmq_append_duration_seconds_count") == 1 + 2
        assert master.sum("rocketmq_sends_total", code="SUCCESS") == 1
        assert slave.sum("rocketmq_ha_connected", node="1") == 1
        assert slave.sum("rocketmq_ha_refused") == 0
        assert slave.sum("rocketmq_commitlog_fsync_duration_seconds_count") > 0


async def test_sends_without_waiting_are_counted_once_in_metrics(tmp_path):
    async with Classic(tmp_path, slaves=0, role="ASYNC_MASTER") as group:
        await group.create_topic(group.master, "T")
        properties = "WAIT\x01false\x02"
        assert (await group.send(group.master, "T", properties=properties)).code == 0
        await until(lambda: group.master.sends.put_count == 1 + 2)
        scrape = scraped(group.master)
        assert scrape.sum("rocketmq_sends_total") == 1
        assert scrape.sum("rocketmq_append_duration_seconds_count") == 1 + 2
