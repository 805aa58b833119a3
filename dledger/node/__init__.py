"""One running replica: it drives the Raft algorithm from asyncio."""
