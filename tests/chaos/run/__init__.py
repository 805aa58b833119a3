"""Runs with scenarios, the nemesis, comparison and live view."""
