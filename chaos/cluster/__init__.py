"""A cluster of processes on this machine: what it is made of, starting, probing, ending it."""
