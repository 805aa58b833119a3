"""IndexFiles, for messages by key."""
