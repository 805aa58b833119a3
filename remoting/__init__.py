"""RocketMQ's remoting protocol, its connections, and access control.

Connection, server and client use asyncio; the codecs and headers do not.
"""
