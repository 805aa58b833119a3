"""The ops room: configuration, logs and metrics of every server process."""
