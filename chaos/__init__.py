"""Chaos: clusters of processes, faults, workloads, histories, checks of them, and their report."""
