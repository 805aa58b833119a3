"""The CommitLog: segments, durability, and recovery."""
