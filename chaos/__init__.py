"""Clusters of processes, faults, workloads, histories, checks of histories, and reports."""
