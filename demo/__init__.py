"""The main demo, with a year of departures, two leader kills and an audit."""
