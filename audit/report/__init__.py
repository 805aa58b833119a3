"""The report of an audit: as data, text, HTML, and files."""
