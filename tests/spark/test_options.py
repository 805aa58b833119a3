"""The options of format `raftmq`: every mistake is told."""

import pytest

from raftmq.spark.offset_ranges import EARLIEST, LATEST, Queue
from raftmq.spark.options import (
    NAMES,
    OptionError,
    columns_of,
    connection_of,
    options_of,
    read_options,
)

GIVEN = {"namesrv": "h:1", "topic": "T"}


def test_options_have_defaults() -> None:
    batch = read_options(GIVEN, streaming=False)
    assert (batch.start.default, batch.end.default) == (EARLIEST, LATEST)
    assert (batch.topics, batch.pattern, batch.fail_on_data_loss) == (("T",), "", True)
    assert batch.connection.credentials is None and batch.connection.tls is None
    assert read_options(GIVEN, streaming=True).start.default == LATEST
    assert "body" in batch.columns and "properties" not in batch.columns


def test_option_names_are_case_insensitive() -> None:
    given = {"NAMESRV": "h:1", "topicpattern": "a.*", "maxoffsetspertrigger": "7"}
    options = read_options(given, streaming=True)
    assert (options.connection.namesrv, options.pattern, options.rows_max) == ("h:1", "a.*", 7)


def test_options_take_offsets_by_queue() -> None:
    given = GIVEN | {"startingOffsets": '{"T": {"b": {"0": 17, "1": -1}}}'}
    start = read_options(given, streaming=False).start
    assert start.named == {Queue("T", "b", 0): 17, Queue("T", "b", 1): LATEST}
    assert start.default == EARLIEST


def test_queues_and_times() -> None:
    given = {"namesrv": "h:1", "assign": '{"T": {"b": [1, 0]}}', "maxTriggerDelay": "2m"}
    given |= {"startingTimestamp": '{"T": {"b": {"0": 17}}}'}
    options = read_options(given, streaming=True)
    assert options.assigned == (Queue("T", "b", 0), Queue("T", "b", 1))
    assert (options.topics, options.delay_ms_max) == (("T",), 120_000)
    start = options.start
    assert (start.times_ms, start.default) == ({Queue("T", "b", 0): 17}, LATEST)


def test_option_columns_keep_the_order_of_the_schema() -> None:
    given = {"columns": "body, queue_offset,properties"}
    assert columns_of(given) == ("queue_offset", "body", "properties")
    assert columns_of({"includeProperties": "true"})[-1] == "properties"


def test_options_take_accounts_and_tls() -> None:
    given = GIVEN | {"accessKey": "a", "secretKey": "s", "tls": "true", "tlsTrustPath": "ca.pem"}
    connection = read_options(given, streaming=False).connection
    assert connection.credentials is not None and connection.tls is not None
    assert (connection.credentials.access_key, connection.tls.trust_path) == ("a", "ca.pem")
    assert "'s'" not in repr(connection)


def test_connection_is_equal_after_the_way_over_options() -> None:
    given = {"namesrv": "h:1", "accessKey": "a", "secretKey": "s", "tls": "true"}
    connection = connection_of(given | {"brokerAddressMap": "1.2.3.4:1=b0:2; 1.2.3.4:3=b1:2"})
    assert connection.reached_at == {"1.2.3.4:1": "b0:2", "1.2.3.4:3": "b1:2"}
    assert connection_of(options_of(connection)) == connection


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": "T"}, "namesrv is missing"),
        ({"namesrv": "h:1"}, "topic (several with commas), topicPattern or assign"),
        (GIVEN | {"topicPattern": "T"}, "one of them"),
        ({"namesrv": "h:1", "topicPattern": "("}, "no regular expression"),
        ({"namesrv": "h:1", "assign": '{"T": {"b": ["0"]}}'}, "assign is JSON"),
        ({"namesrv": "h:1", "assign": "{}"}, "assign is JSON"),
        (GIVEN | {"startingTimestamp": '{"T": {"b": {"0": -1}}}'}, "startingTimestamp is"),
        (
            GIVEN | {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"},
            "latest or",
        ),
        (GIVEN | {"maxTriggerDelay": "15"}, "maxTriggerDelay is a time such as"),
        (GIVEN | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is larger than"),
        (GIVEN | {"commitOffsets": "true"}, "needs option consumerGroup"),
        (GIVEN | {"onDamage": "ignore"}, "onDamage is fail, null or skip, not ignore"),
        (GIVEN | {"topics": "T"}, "there is no option topics"),
        (GIVEN | {"minPartitions": "0"}, "minPartitions is a whole number of at least 1"),
        (GIVEN | {"minPartitions": "1e3"}, "minPartitions is a whole number"),
        (GIVEN | {"failOnDataLoss": "yes"}, "failOnDataLoss is true or false, not yes"),
        (GIVEN | {"startingOffsets": "newest"}, "startingOffsets is earliest, latest or JSON"),
        (GIVEN | {"startingOffsets": '{"T": {"b": {"0": "1"}}}'}, "startingOffsets is"),
        (GIVEN | {"startingOffsets": '{"T": {"b": {"0": -3}}}'}, "startingOffsets is"),
        (GIVEN | {"startingOffsets": "[1]"}, "startingOffsets is"),
        (GIVEN | {"startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        (GIVEN | {"columns": "body,offset"}, "there is no column 'offset'"),
        (GIVEN | {"accessKey": "a"}, "belong together"),
        (GIVEN | {"tlsTrustPath": "ca.pem"}, "need tls=true"),
        (GIVEN | {"brokerAddressMap": "h:1"}, "brokerAddressMap is not of the form"),
    ],
)
def test_option_error_names_the_mistake(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told.replace("(", r"\(").replace(")", r"\)")):
        read_options(given, streaming=False)


def test_option_ending_offsets_is_rejected_for_a_stream() -> None:
    with pytest.raises(OptionError, match="a stream has no end"):
        read_options(GIVEN | {"endingOffsets": "latest"}, streaming=True)


def test_every_spark_option_is_documented() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in page] == []
