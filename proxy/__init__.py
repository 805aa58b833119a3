"""`mqproxy`, RocketMQ 5's gRPC endpoint for a whole cluster.

A proxy is a process of its own between gRPC clients and the remoting protocol of name servers and
brokers. It is stateless. Receipt handles and transaction ids hold the position of their message,
and in-flight state is in the brokers' logs.
"""
