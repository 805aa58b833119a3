"""The node API: what a broker answers over HTTP, and what can be done to it there."""
