"""The chaos room: see docs/architecture.md."""
