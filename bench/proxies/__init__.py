"""Our gRPC proxy beside Apache's, measured in turns on one machine: `python -m bench.proxies`."""
