"""NATS JetStream under the same faults, load and checks as our brokers."""
