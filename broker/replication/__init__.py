"""The replication of the log, Raft or classic, seen from the broker, and this replica's role."""
