"""The broker: requests, the send path, consumers, delivery, replication, administration."""
