"""The audit room: see docs/architecture.md."""
