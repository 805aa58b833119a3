"""Classic master/slave replication: RocketMQ's HA stream, and the metadata a slave pulls."""
