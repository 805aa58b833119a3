"""The repair of damaged frames, and the scrubber that finds them."""
