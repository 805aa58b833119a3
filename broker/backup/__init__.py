"""Creation, verification and restore of backups of a Raft group's log and tables."""
