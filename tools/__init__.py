"""Programs that make what the repository holds, and what builds need."""
