"""Tests of the room that operators meet: configuration, logs, metrics, alerts."""
