"""Messages that wait to be delivered: delayed, given back, halves of transactions."""
