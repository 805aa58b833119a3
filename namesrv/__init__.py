"""The name server: it knows which brokers have which topics, because brokers register them.

Core (pure): routes, kv, views. Shell: processor, server, cli.
"""
