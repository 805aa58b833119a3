"""mqadmin, Apache RocketMQ's administration commands for clusters of ours and of Apache's."""
