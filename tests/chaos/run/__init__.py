"""Runs: scenarios, the nemesis, comparison, watching."""
