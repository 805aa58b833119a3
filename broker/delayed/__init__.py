"""Delivery of delayed and timer messages, and returned messages."""
