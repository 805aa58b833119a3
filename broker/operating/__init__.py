"""What operators and their tools see and do."""
