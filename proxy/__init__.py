"""The proxy room: `mqproxy`, RocketMQ 5's gRPC endpoint for a whole cluster.

A proxy is a process of its own. It speaks gRPC to clients and the remoting protocol to name servers
and brokers, and keeps nothing that another proxy would need: receipt handles and transaction ids
say where their message is, and what is in flight is in the brokers' logs.
"""
