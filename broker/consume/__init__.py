"""Pulls, filters, offsets and queue locks of consumers."""
