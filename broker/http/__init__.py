"""The node API: a broker's HTTP interface for queries and operations."""
