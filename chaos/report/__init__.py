"""The report of a run: recovery times, series, the page."""
