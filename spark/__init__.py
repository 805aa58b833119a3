"""Topics as DataFrames: Spark's format `raftmq`, over the network from running brokers."""
