"""The namesrv room: keeps which topic lives where, from what brokers say about themselves.

Core (pure): routes, kv, views. Shell: processor, server, cli.
"""
