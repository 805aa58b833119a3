"""The broker, with requests, the send path, consumers, delivery, replication and administration."""
