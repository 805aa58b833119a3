"""The cluster's HTTP API on a name server, and the dashboard over it.

Core (pure): differences, failovers, merging. Shell: directory, nodes, streams, cluster, server.
"""
