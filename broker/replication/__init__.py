"""Replication of the log, Raft or classic, and this replica's role."""
