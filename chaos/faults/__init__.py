"""Faults injected into a cluster: the catalogue, their targets, times and healing."""
