"""Classic master/slave replication: RocketMQ's HA stream, and the metadata pulled by a slave."""
