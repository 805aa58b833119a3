"""IndexFiles: messages by key."""
