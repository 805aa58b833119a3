"""The replicated tables (topics, groups, offsets, accounts …), and their snapshots."""
