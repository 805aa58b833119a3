"""Forms of a message, as sent, waiting, and stored."""
