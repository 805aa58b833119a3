"""What clients do during a run; every operation is written into the history."""
