"""Topics as DataFrames by Spark's format `raftmq`, over the network from running brokers."""
