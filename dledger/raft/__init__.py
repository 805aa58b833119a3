"""The Raft algorithm: a state machine without input or output, clock or randomness."""
