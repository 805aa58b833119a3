"""The remoting room: see docs/architecture.md."""
