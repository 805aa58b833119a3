"""The brokers' own topics that the audit knows, with RocketMQ's names."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # a delayed message waits there until it is due
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # a half message, until it is decided
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMED_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)  # units have times instead of tags codes
MULTI_QUEUE_PREFIX = "%LMQ%"  # such queues point at records of other topics on purpose
