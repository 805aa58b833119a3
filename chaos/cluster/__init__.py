"""A cluster of processes on this machine: description, start, probe and end."""
