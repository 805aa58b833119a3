"""Sends, from the request to a frame in the log and the response."""
