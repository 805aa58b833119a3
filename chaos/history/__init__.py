"""The format, writer and reader of a run's record."""
