"""JetStream under our faults: what needs no server."""
