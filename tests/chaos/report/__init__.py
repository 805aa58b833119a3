"""Tests of a run's report."""
