"""The remoting room: RocketMQ's wire protocol, and connections that speak it.

Core (pure): codes, command, codec, fastjson, fields, headers, admin_headers, registration, address,
errors, pending. Shell (asyncio): connection, server, client.
"""
