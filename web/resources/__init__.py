"""The types of what brokers and name servers show and take over HTTP. Pure."""
