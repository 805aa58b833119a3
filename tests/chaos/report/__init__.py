"""What a run says for itself."""
