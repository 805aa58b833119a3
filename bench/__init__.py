"""Benchmarks of this project; start with bench/__main__.py."""
