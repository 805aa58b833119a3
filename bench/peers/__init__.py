"""Our broker beside others, measured in turns on one machine: `python -m bench.peers`."""
