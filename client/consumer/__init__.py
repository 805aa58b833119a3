"""Consumers: push, pull, lite pull and simple, with their offsets and queue locks."""
