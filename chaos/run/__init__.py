"""A run from its start to the verdict, and the processes that watch it."""
