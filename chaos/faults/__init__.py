"""Faults injected into a cluster, their catalogue, targets, times and healing."""
