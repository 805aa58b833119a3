"""Messages that wait to be delivered: delayed ones, those given back, half messages."""
