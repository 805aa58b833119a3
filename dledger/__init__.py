"""The dledger room: see docs/architecture.md."""
