"""The node API: a broker's HTTP interface."""
