"""What a run says for itself: recovery times, series, the page."""
