"""The Raft log and the small files beside it, on disk."""
