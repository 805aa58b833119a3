"""Spark finds its formats in modules of this name: installing raftmq registers format `raftmq`."""

from raftmq.spark.source import RaftMqSource as DefaultSource

__all__ = ["DefaultSource"]
