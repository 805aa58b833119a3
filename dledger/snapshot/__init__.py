"""Snapshot install: the transfer of a group snapshot, and its place on disk."""
