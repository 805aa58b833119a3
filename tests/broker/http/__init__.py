"""Tests of broker.http."""
