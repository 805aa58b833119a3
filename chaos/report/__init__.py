"""The report of a run with recovery times, series and page."""
