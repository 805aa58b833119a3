"""A running replica, which drives the Raft algorithm from asyncio."""
