"""The replicated state beside the log, and its snapshots."""
