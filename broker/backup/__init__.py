"""Backups of a Raft group's log and tables: taken while it runs, verified, restored."""
