"""All sub-commands, in the order that `mqadmin help` lists them."""

from raftmq.mqadmin import acl, brokers, groups, messages, nameservers, offsets, topics

COMMANDS = (
    *brokers.COMMANDS,
    *topics.COMMANDS,
    *groups.COMMANDS,
    *offsets.COMMANDS,
    *messages.COMMANDS,
    *nameservers.COMMANDS,
    *acl.COMMANDS,
)
