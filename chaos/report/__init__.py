"""The report of a run: recovery times, series and page."""
