"""The namesrv room: see docs/architecture.md."""
