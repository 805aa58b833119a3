"""The namesrv room: which topic lives where, kept from what brokers say about themselves.

Core (pure): routes, kv, views. Shell: processor, server, cli.
"""
