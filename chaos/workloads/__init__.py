"""The clients' load during a run; every operation is written into the history."""
