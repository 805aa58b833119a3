"""Whole clusters from a seed: the programs as they are, in one process, on a simulated world."""
