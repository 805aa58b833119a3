"""History of a broker's rates, durations and lag, in a bounded ring on its disk."""
