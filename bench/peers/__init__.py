"""Our broker beside other systems, measured in turns on one machine (`python -m bench.peers`)."""
