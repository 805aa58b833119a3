"""The main demo: a year of departures through a replicated log, two leader kills, an audit."""
