"""RocketMQ 5's gRPC messages, made from messaging.proto."""
