"""The record of a run: its format, writer and reader."""
