"""Push, pull, lite pull and simple consumers, with their offsets and queue locks."""
