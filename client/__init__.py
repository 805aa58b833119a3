"""The client room: see docs/architecture.md."""
