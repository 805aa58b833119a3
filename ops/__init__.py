"""What every server process here needs beside its work: configuration, logs, metrics."""
