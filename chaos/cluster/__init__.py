"""A cluster of processes on this machine: its description, starting, probing and ending it."""
