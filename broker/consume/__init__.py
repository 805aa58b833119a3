"""The part of a broker that serves consumers: pulls, filters, offsets, locks."""
