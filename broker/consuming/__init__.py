"""What consumers ask of a broker: pulls, filters, offsets, locks."""
