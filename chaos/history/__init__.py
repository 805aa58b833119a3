"""What a run wrote down: the format, its writer and reader."""
