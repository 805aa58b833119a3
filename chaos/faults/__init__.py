"""Faults injected into a cluster: catalogue, targets, times and healing."""
