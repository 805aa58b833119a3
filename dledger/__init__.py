"""Raft: the pure core, the log, the links between peers, and the member that drives them."""
