"""Key-value configuration: its file form and its bound."""

import pytest

from raftmq.namesrv.kv import KvConfig, KvConfigFull
from raftmq.remoting.errors import BodyError


def test_kv_put_get_and_delete() -> None:
    config = KvConfig()
    config.put("n", "k", "v")
    assert config.get("n", "k") == "v"
    assert config.get("n", "x") is None
    assert config.get("m", "k") is None
    assert config.namespace("n") == {"k": "v"}
    config.delete("n", "x")
    config.delete("n", "k")
    assert config.namespace("n") is None


def test_kv_file_format() -> None:
    config = KvConfig()
    config.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    again = KvConfig.decode(config.encode())
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"
    assert KvConfig.decode(b'{"configTable":{}}').encode() == KvConfig().encode()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"configTable":[1]}',
                                  b'{"configTable":{"n":1}}'])  # fmt: skip
def test_damaged_kv_file_is_rejected(data: bytes) -> None:
    with pytest.raises(BodyError):
        KvConfig.decode(data)


def test_kv_size_limit_counts_existing_values() -> None:
    config = KvConfig(size_bytes_max=10)
    config.put("n", "k", "v" * 8)
    config.put("n", "k", "w" * 8)  # in place of the old one
    with pytest.raises(KvConfigFull):
        config.put("n", "l", "")
    assert config.get("n", "l") is None
    config.delete("n", "k")
    config.put("n", "l", "v" * 8)


def test_kv_limits_count_values_and_bytes() -> None:
    config = KvConfig(size_bytes_max=13, values_max=2)
    config.put("n", "k", "é" * 4)
    with pytest.raises(KvConfigFull, match="13 bytes"):
        config.put("n", "k", "é" * 6)
    config.put("n", "l", "")
    config.put("n", "l", "")
    with pytest.raises(KvConfigFull, match="2 values"):
        config.put("m", "", "")
    config.delete("n", "k")
    config.put("m", "", "")


def test_kv_copy_has_the_same_limits() -> None:
    config = KvConfig(size_bytes_max=9, values_max=2)
    config.put("n", "k", "v")
    twin = config.copy()
    twin.put("n", "l", "v")
    with pytest.raises(KvConfigFull, match="2 values"):
        twin.put("n", "m", "v")
    with pytest.raises(KvConfigFull, match="9 bytes"):
        twin.put("n", "l", "v" * 5)
    assert config.namespace("n") == {"k": "v"}
