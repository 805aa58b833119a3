"""A broker's rates, durations and lag over hours or days, noted in a bounded ring on its disk."""
