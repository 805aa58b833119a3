"""The name server, which brokers register with and clients ask for routes."""
