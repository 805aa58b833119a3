"""The record of a run: format, writer and reader."""
