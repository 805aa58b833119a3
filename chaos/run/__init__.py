"""A run from begin to verdict, and what watches it."""
