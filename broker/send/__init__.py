"""The way from a send request to a frame in the log, and the answer."""
