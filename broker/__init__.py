"""The broker room: see docs/architecture.md."""
