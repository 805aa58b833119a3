"""Benchmarks that stay in the project: see bench/__main__.py."""
