"""Tests of the tools that measure."""
