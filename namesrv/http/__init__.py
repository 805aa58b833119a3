"""The cluster's HTTP API on a name server, and its dashboard."""
