"""A cluster of processes on this machine, its description, start, probe and end."""
