"""All sub-commands and their flags, in the order of `mqadmin help`.

Each declaration names its function as `module:function`. The function is imported when the command
runs, which keeps `--help` and the shell's completion fast.
"""

from .command import Command, Flag, Kind, Manner, Positional

CHANGES, SENDS, STREAMS = Manner.CHANGES, Manner.SENDS, Manner.STREAMS

BROKER = Flag("b", "brokerAddr", "This broker, host:port.")
CLUSTER = Flag("c", "clusterName", "Every broker group of this cluster.")
TOPIC = Flag("t", "topic", "The topic.", required=True)
ROUTED_BY = Flag("c", "cluster", "No effect: routes are read by topic.")
GROUP_SETTINGS = (
    Flag("s", "consumeEnable", "May consume.", Kind.BOOLEAN),
    Flag("m", "consumeFromMinEnable", "May start at the oldest message.", Kind.BOOLEAN),
    Flag("d", "consumeBroadcastEnable", "May broadcast.", Kind.BOOLEAN),
    Flag("o", "consumeMessageOrderly", "Consumes in order.", Kind.BOOLEAN),
    Flag("q", "retryQueueNums", "Queues of the retry topic.", Kind.INTEGER),
    Flag("r", "retryMaxTimes", "Deliveries before the dead letters.", Kind.INTEGER),
    Flag("p", "groupRetryPolicy", "Apache 5's retry policy, JSON."),
    Flag("i", "brokerId", "Id of the replica to consume from.", Kind.INTEGER),
    Flag(
        "w", "whichBrokerWhenConsumeSlowly", "Id of the replica for slow consumers.", Kind.INTEGER
    ),
    Flag("a", "notifyConsumerIdsChanged", "Notify members of changes.", Kind.BOOLEAN),
    Flag("", "attributes", "Apache 5's attributes: +a=b,-c."),
)
CONSUMER_GROUP = Flag("g", "consumerGroup", "The consumer group.", required=True)
GROUP_NAME = Flag("g", "groupName", "The consumer group.", required=True)
OFFSET_GROUP = Flag("g", "group", "The consumer group.", required=True)
FORCE_LAST = Flag("", "force", "Even if no further account is an administrator's.", Kind.SWITCH)
FORCE = Flag("f", "force", "false: only back, never ahead.", Kind.BOOLEAN)
START = Flag("b", "beginTimestamp", "Earliest store time.", Kind.TIME)
END = Flag("e", "endTimestamp", "Latest store time, exclusive.", Kind.TIME)
ONE_CLIENT = (
    Flag("g", "consumerGroup", "With -d: this group's client consumes it now."),
    Flag("d", "clientId", "With -g: the client."),
)
BODY_FORMAT = Flag("f", "bodyFormat", "Charset of the body (UTF-8).")
NAMESPACE = Flag("s", "namespace", "The namespace.", required=True)
KEY = Flag("k", "key", "The key.", required=True)
VALUE = Flag("v", "value", "Its value.", required=True)
BROKER_NAME = Flag("b", "brokerName", "The broker group's name.", required=True)
ACCESS_KEY = Flag("a", "accessKey", "The account's access key.", required=True)
WHERE = (BROKER, CLUSTER)
TO_TOPIC = Positional("topic")
DRY_RUN = Flag("", "dryRun", "Show the changes without making them.", Kind.SWITCH)
ONLY_CLUSTER = Flag("c", "cluster", "The cluster; none: the only cluster.")
WITH_ORDERED = Flag(
    "", "withOrdered", "Also change ordered topics, whose keys change their queues.", Kind.SWITCH
)

# Our own commands.
CONSUME = Command("consume",
    "Print messages of a topic, by default all present messages, the oldest first. Without a "
    "group nothing is committed.",
    (Flag("f", "follow", "Continue with new messages until Ctrl-C.", Kind.SWITCH),
     Flag("", "from",
         "Start: first, last (the end), -N (N before the end of each queue), a time, or an age "
         "(90s, 15m, 2h, 1d). Default: first, with --follow last."),
     Flag("q", "queue", "This queue only: ID or BROKER:ID; may be repeated.", repeated=True),
     Flag("", "tag", "Only with these tags: TagA || TagB."),
     Flag("", "sql", "Only messages that match this SQL92 expression."),
     Flag("F", "format",
         "line (time, position, tags, keys, body), text (bodies), json (a "
         "document per line), hex, template.", default="line",
          choices=("line", "text", "json", "hex", "template")),
     Flag("T", "template", "For each message this text: {topic} {broker} {queue} {offset} {msgId}"
          " {tags} {keys} {born} {stored} {reconsumeTimes} {size} {body} {property.NAME}, \\n,"
          " \\t."),
     Flag("c", "count", "End after this number of messages.", Kind.INTEGER),
     Flag("g", "group",
         "Join this consumer group: share its queues, start at its offsets, commit printed "
         "messages. Runs until Ctrl-C or --count.")),
    "consume:consume", STREAMS, (TO_TOPIC,))  # fmt: skip
PRODUCE = Command("produce", "Send messages: each line of standard input, or of files.",
    (Flag("F", "format",
        "lines, json (a document per line, "
        "as consume prints them), file "
        "(each file is a message).", default="lines", choices=("lines", "json", "file")),
     Flag("k", "key", "Key of every message; may be repeated.", repeated=True),
     Flag("t", "tags", "Tag of every message."),
     Flag("p", "property", "NAME=VALUE, a property of every message; may be repeated.",
          repeated=True),
     Flag("d", "delay", "Delay of the delivery: 500ms, 30s, 15m, 2h, 1d."),
     Flag("q", "queue", "Send to this queue: BROKER:ID."),
     Flag("", "window", "Sends in flight; with 1 and --queue they are stored in their order.",
          Kind.INTEGER, default=256),
     Flag("", "timeout", "Seconds for a send with its retries.", Kind.NUMBER, default=10.0),
     Flag("", "keepGoing", "Continue after a rejected message or an unknown outcome.",
          Kind.SWITCH),
     Flag("", "json", "Print the figures as JSON.", Kind.SWITCH)),
    "produce:produce", SENDS, (TO_TOPIC, Positional("files", repeated=True)))  # fmt: skip
TOP = Command("top", "Show rates, lag and leaders of the cluster, live.",
    (Flag("", "interval", "Refresh interval in seconds.", Kind.NUMBER, default=2.0),
     Flag("t", "topic", "This topic only."),
     Flag("g", "group", "This group only."),
     Flag("a", "all", "Include system topics and groups.", Kind.SWITCH),
     Flag("", "rows", "Rows of a table; 0: all.", Kind.INTEGER, default=20),
     Flag("", "once", "Show once, with rates over an interval.", Kind.SWITCH),
     Flag("", "json", "Print JSON, a document per refresh.", Kind.SWITCH)),
    "top:top", STREAMS)  # fmt: skip

COMMANDS = (
    CONSUME, PRODUCE, TOP,
    Command("clusterList", "List the brokers of all clusters, and their load.",
        (Flag("m", "moreStats", "Messages in and out, yesterday and today.", Kind.SWITCH),
         Flag("i", "interval", "Repeat after this number of seconds.", Kind.INTEGER),
         Flag("c", "clusterName", "This cluster only.")), "brokers:cluster_list"),
    Command("brokerStatus", "Show a broker's runtime information.",
        (BROKER, CLUSTER), "brokers:broker_status"),
    Command("brokerConsumeStats", "Show the progress of a broker's consumer groups.",
        (Flag("b", "brokerAddr", "This broker, host:port.", required=True),
         Flag("t", "timeoutMillis", "Time-out of the answer.", Kind.INTEGER),
         Flag("l", "level", "Minimum lag of the shown queues, in messages.", Kind.INTEGER),
         Flag("o", "order", "Of order topics.", Kind.BOOLEAN)), "brokers:broker_consume_stats"),
    Command("getBrokerConfig", "Show a broker's configuration.", (BROKER, CLUSTER),
        "brokers:get_config"),
    Command("updateBrokerConfig", "Change a configuration key of running brokers.",
        (BROKER, CLUSTER,
         Flag("a", "updateAllBroker", "With -c: also slaves and followers.", Kind.BOOLEAN),
         Flag("k", "key", "The key.", required=True),
         Flag("v", "value", "Its value.", required=True)), "brokers:update_config", CHANGES),
    Command("cleanExpiredCQ", "Delete ConsumeQueue files of deleted CommitLog segments.",
        (BROKER, Flag("c", "cluster", "Every broker of this cluster.")),
        "brokers:clean_queues", CHANGES),
    Command("deleteExpiredCommitLog", "Delete expired CommitLog files now.",
        (BROKER, Flag("c", "cluster", "Every broker of this cluster."),
         Flag("", "trustClock",
             "Trust the brokers' clocks against their logs: delete messages that "
             "are old by the clock.", Kind.SWITCH)),
        "brokers:delete_log", CHANGES),
    Command("raftStatus", "Show each Raft replica's own view of its group.",
        (Flag("c", "clusterName", "This cluster only."),
         Flag("b", "brokerName", "This broker group only.")), "brokers:raft_status"),
    Command("transferLeader", "Transfer the leadership of a Raft group, and wait for it.",
        (Flag("b", "brokerName", "The broker group.", required=True),
         Flag("t", "target",
             "The next leader (n1). Default: the most complete voter that can lead at once."),
         Flag("", "force", "Also to a replica with a full or slow disk.", Kind.SWITCH)),
        "brokers:transfer_leader", CHANGES),
    Command("members", "Show or change the members of a Raft group.",
        (Flag("b", "brokerName", "The broker group.", required=True),
         Flag("o", "op",
             "list, add (a learner), promote (to voter), remove, move "
             "(address), prefer (as leader; none without -i).", default="list"),
         Flag("i", "memberId", "The member's dLegerSelfId (n3)."),
         Flag("a", "memberAddress", "add, move: host:port of its Raft listener."),
         Flag("w", "wait", "Retry for this number of seconds while it is rejected.", Kind.INTEGER),
         Flag("", "force", "add, move: even if the member does not answer at its address.",
              Kind.SWITCH)),
        "brokers:members", CHANGES),
    Command("drainGroup", "Empty a broker group: clients send elsewhere, and consume the rest.",
        (BROKER_NAME, Flag("", "cancel", "Take it back.", Kind.SWITCH),
         Flag("", "wait", "Wait so many seconds until it is empty.", Kind.NUMBER)),
        "drain:drain_group", CHANGES),
    Command("drainStatus", "Show the remaining content of a draining broker group.",
        (BROKER_NAME,), "drain:drain_status"),
    Command("removeGroup", "Remove an empty broker group from its cluster.",
        (BROKER_NAME, Flag("", "lose", "Even if it is not empty.", Kind.SWITCH)),
        "drain:remove_group", CHANGES),
    Command("topicList", "List all topics of the name server.",
        (Flag("c", "clusterModel", "With cluster and consumer groups.", Kind.SWITCH),),
        "topics:topic_list"),
    Command("topicStatus", "Show the offsets of a topic's queues.", (TOPIC, ROUTED_BY),
        "topics:topic_status"),
    Command("topicRoute", "Show where a topic's queues are.",
        (TOPIC, Flag("l", "list", "Queues only, a line each.", Kind.SWITCH)), "topics:topic_route"),
    Command("topicClusterList", "List the clusters that have a topic.", (TOPIC,),
        "topics:topic_cluster_list"),
    Command("updateTopic", "Create or change a topic.",
        (BROKER, CLUSTER, TOPIC,
         Flag("r", "readQueueNums", "Queues read from (8).", Kind.INTEGER),
         Flag("w", "writeQueueNums", "Queues written to (8).", Kind.INTEGER),
         Flag("p", "perm", "2: write, 4: read, 6: both (6).", Kind.INTEGER),
         Flag("a", "attributes", "Apache 5's attributes: +a=b,-c."),
         Flag("o", "order", "An order topic.", Kind.BOOLEAN),
         Flag("u", "unit", "A unit topic.", Kind.BOOLEAN),
         Flag("s", "hasUnitSub", "Has unit subscriptions.", Kind.BOOLEAN),
         Flag("", "keepMessages",
             "Show the remaining messages of a deleted topic. Otherwise it starts "
             "empty.", Kind.SWITCH)),
        "topics:update_topic", CHANGES),
    Command("updateTopicPerm", "Change a topic's permissions.",
        (BROKER, CLUSTER, TOPIC,
         Flag("p", "perm", "2: write, 4: read, 6: both.", Kind.INTEGER, required=True)),
        "topics:update_perm", CHANGES),
    Command("deleteTopic",
        "Delete a topic from brokers and name servers, with its groups' offsets and the retries "
        "of their pops. A new topic of the same name starts empty. Until retention deletes the "
        "messages, updateTopic --keepMessages shows them again.",
        (TOPIC, Flag("c", "clusterName", "From this cluster.", required=True)),
        "topics:delete_topic", CHANGES),
    Command("emptyTopic",
        "Delete a topic's messages, with its groups' offsets and the retries of their pops, and "
        "show each broker's number of messages. Until retention deletes them, updateTopic "
        "--keepMessages shows the messages again, without the retries.",
        (TOPIC, Flag("c", "clusterName", "In this cluster.", required=True)),
        "topics:empty_topic", CHANGES),
    Command("writers", "Show a topic's exactly-once writers with their watermarks.",
        (TOPIC,), "topics:writers"),
    Command("deleteWriter", "Delete an exactly-once writer and its watermarks.",
        (TOPIC, Flag("w", "writer", "The writer.", required=True)),
        "topics:delete_writer", CHANGES),
    Command("copyDefinitions",
        "Create the topics and consumer groups of a broker group in a second broker group, for a "
        "move. May be repeated.",
        (Flag("", "from", "The old broker group's name.", required=True),
         Flag("", "to", "The new broker group's name.", required=True),
         Flag("p", "perm", "Permission of new topics: 2: write, 4: read, 6: both (4).",
              Kind.INTEGER),
         DRY_RUN),
        "definitions:copy_definitions", CHANGES),
    Command("definitions",
        "Compare the topics and consumer groups of a cluster's broker groups, and show those that "
        "differ or are missing.",
        (ONLY_CLUSTER,
         Flag("", "align",
             "Create missing topics and consumer groups, and raise numbers of queues to the "
             "largest.", Kind.SWITCH),
         WITH_ORDERED,
         Flag("", "like", "With this broker group's settings of consumer groups that differ."),
         DRY_RUN),
        "definitions:definitions", CHANGES),
    Command("spreadTopic",
        "Spread a topic's queues evenly over the broker groups of a cluster. Surplus queues are "
        "closed for writing, and taken away when they are consumed. Exit status 5: run it again "
        "later.",
        (ONLY_CLUSTER, TOPIC,
         Flag("", "queues", "Number of queues in all broker groups together.", Kind.INTEGER,
              required=True),
         Flag("", "wait",
             "Seconds before closed queues are taken away, in which clients ask for routes.",
              Kind.NUMBER, default=30.0),
         WITH_ORDERED, DRY_RUN),
        "spread_topic:spread_topic", CHANGES),
    Command("balanceLeaders",
        "Spread the leaders of Raft groups evenly over zones (brokerZone) and machines, which are "
        "the hosts of the replicas' addresses. Exit status 5: groups were left.",
        (Flag("c", "cluster", "Only the broker groups of this cluster."), DRY_RUN,
         Flag("", "plan", "The same as --dryRun.", Kind.SWITCH)),
        "balance_leaders:balance_leaders", CHANGES),
    Command("checkMove",
        "Check an old cluster, Apache's or ours, for problems of a move (ok, look, stop). "
        "Changes and copies nothing.",
        (Flag("b", "brokerName", "This broker group only."),
         Flag("", "way",
             "Only this way of moving: take over the "
             "store, copy it by a slave, or move "
             "traffic to a new broker group.", choices=("store", "slave", "traffic"))),
        "check_move:check_move"),
    Command("compare",
        "Compare the messages of two brokers, groups or clusters. Messages that are missing, "
        "changed or doubled in the second are an error.",
        (Flag("", "from", "The old side: a broker's address, a broker group or a cluster.",
              required=True),
         Flag("", "to", "The new side.", required=True),
         Flag("t", "topic",
             "Only this topic; may be repeated. Default: the topics of the old "
             "side, without system topics.", repeated=True),
         Flag("", "by",
             "Identity of a message: offset (with its "
             "queue), key (the producer's UNIQ_KEY) or "
             "body. Default: offset if both sides have the "
             "same queues with the same ends, else key.", choices=("offset", "key", "body"))),
        "compare:compare"),
    Command("statsAll", "Show rates and lag of topics and their groups.",
        (Flag("a", "activeTopic", "Only topics with traffic within 24 h.", Kind.SWITCH),
         Flag("t", "topic", "This topic only.")), "topics:stats_all"),
    Command("updateSubGroup", "Create or change a subscription group.",
        (BROKER, CLUSTER, GROUP_NAME, *GROUP_SETTINGS), "groups:update_group", CHANGES),
    Command("deleteSubGroup", "Delete a subscription group.",
        (BROKER, CLUSTER, GROUP_NAME,
         Flag("r", "removeOffset", "Also delete its offsets.", Kind.BOOLEAN)),
        "groups:delete_group", CHANGES),
    Command("setConsumeMode", "Let a group's 5.x clients pull or pop a topic.",
        (BROKER, CLUSTER, GROUP_NAME, Flag("t", "topicName", "The topic.", required=True),
         Flag("m", "mode", "PULL, or POP (the broker distributes single messages).", required=True),
         Flag("q", "popShareQueueNum",
             "POP: number of neighbours whose "
             "queues a client also pops (0: all "
             "queues).", Kind.INTEGER)), "groups:set_mode", CHANGES),
    Command("consumerProgress",
        "Show a group's progress in each queue, or a summary of all groups.",
        (Flag("g", "groupName", "The consumer group; none: all."),
         Flag("t", "topicName", "This topic only."),
         Flag("s", "showClientIP", "With the client of each queue.", Kind.BOOLEAN),
         Flag("c", "cluster", "No effect: routes are read by topic.")),
        "groups:progress"),
    Command("consumerStatus", "Show the state of consumers.",
        (CONSUMER_GROUP, Flag("i", "clientId", "This client only."), BROKER,
         Flag("s", "jstack", "Include the stacks of its threads.", Kind.SWITCH)),
        "groups:consumer_status"),
    Command("consumerConnection", "Show consumers with addresses, versions and subscriptions.",
        (CONSUMER_GROUP, BROKER), "groups:consumer_connection"),
    Command("producerConnection", "Show producers.",
        (Flag("g", "producerGroup", "The producer group.", required=True),
         Flag("t", "topic",
             "A topic of the producer.", required=True)), "groups:producer_connection"),
    Command("resetOffsetByTime",
        "Reset a group's offsets to a time. Running consumers follow, also over a failover.",
        (OFFSET_GROUP, TOPIC,
         Flag("s", "timestamp", "now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS; -1: the end.",
              Kind.TIME, required=True),
         FORCE, ROUTED_BY,
         Flag("b", "broker", "Only this broker."),
         Flag("q", "queue", "Only this queue.", Kind.INTEGER),
         Flag("o", "offset", "To this offset, with -b and -q.", Kind.INTEGER)),
        "offsets:reset", CHANGES),
    Command("skipAccumulatedMessage", "Skip all unconsumed messages of a group.",
        (OFFSET_GROUP, TOPIC, FORCE, ROUTED_BY), "offsets:skip", CHANGES),
    Command("cloneGroupOffset", "Copy the offsets of a group to a second group.",
        (Flag("s", "srcGroup", "The source group.", required=True),
         Flag("d", "destGroup", "The target group.", required=True), TOPIC,
         Flag("o", "offline", "Accepted for compatibility; no effect.")),
        "offsets:clone", CHANGES),
    Command("queryMsgById", "Show a message by its id (several: separated by commas).",
        (TOPIC, Flag("i", "msgId", "Offset message id, or the producer's id.", required=True),
         *ONE_CLIENT,
         Flag("s", "sendMessage", "Send it again instead.", Kind.BOOLEAN),
         Flag("u", "unitName", "Accepted for compatibility; no effect."),
         BODY_FORMAT, ROUTED_BY), "messages:by_id", CHANGES),
    Command("queryMsgByKey", "Find messages by one of their keys.",
        (TOPIC, Flag("k", "msgKey", "The key.", required=True),
         Flag("b", "beginTimestamp", "Earliest store time, ms.", Kind.INTEGER),
         Flag("e", "endTimestamp", "Latest store time, ms.", Kind.INTEGER),
         Flag("m", "maxNum", "Maximum number (64).", Kind.INTEGER), ROUTED_BY), "messages:by_key"),
    Command("queryMsgByUniqueKey", "Show a message by its producer's id.",
        (TOPIC, Flag("i", "msgId", "The UNIQ_KEY.", required=True), *ONE_CLIENT,
         Flag("a", "showAll", "Every message with it.", Kind.SWITCH), ROUTED_BY),
        "messages:by_unique_key", CHANGES),
    Command("queryMsgByOffset", "Show the message at an offset of a queue.",
        (TOPIC, Flag("b", "brokerName", "The broker group.", required=True),
         Flag("i", "queueId", "The queue.", Kind.INTEGER, required=True),
         Flag("o", "offset", "The offset.", Kind.INTEGER, required=True), BODY_FORMAT),
        "messages:by_offset"),
    Command("queryCq", "Show entries of a ConsumeQueue.",
        (TOPIC, Flag("q", "queue", "The queue.", Kind.INTEGER, required=True),
         Flag("i", "index", "First offset.", Kind.INTEGER, required=True),
         Flag("c", "count", "Number (10).", Kind.INTEGER),
         Flag("b", "broker", "Of this broker, host:port; none: a leader."),
         Flag("g", "consumer", "Show whether this group's subscription matches them.")),
        "messages:queue_units"),
    Command("printMsg", "Print the messages of a topic.",
        (TOPIC, Flag("c", "charsetName", "Charset of the bodies (UTF-8)."),
         Flag("s", "subExpression", "Only with these tags: TagA || TagB."), START, END,
         Flag("d", "printBody", "With bodies (true).", Kind.BOOLEAN),
         Flag("l", "lmqParentTopic", "Accepted for compatibility; no effect.")),
        "messages:print_all"),
    Command("consumeMessage", "Read messages of a topic, of a queue, from an offset.",
        (TOPIC, Flag("b", "brokerName", "Only this broker group."),
         Flag("i", "queueId", "Only this queue.", Kind.INTEGER),
         Flag("o", "offset", "First offset.", Kind.INTEGER),
         Flag("g", "consumerGroup", "No effect: nothing is committed."),
         Flag("s", "beginTimestamp", "Earliest store time.", Kind.TIME), END,
         Flag("c", "MessageNumber", "Maximum number (128).", Kind.INTEGER)), "messages:consume"),
    Command("sendMessage", "Send a message.",
        (TOPIC, Flag("p", "body", "Its body.", required=True), Flag("k", "key", "Its keys."),
         Flag("c", "tags", "Its tag."), Flag("b", "broker", "To this broker group, with -i."),
         Flag("i", "qid", "To this queue, with -b.", Kind.INTEGER),
         Flag("m", "msgTraceEnable", "Only false: no traces are written.", Kind.BOOLEAN)),
        "messages:send", CHANGES),
    Command("getNamesrvConfig", "Show the configuration of name servers.", (),
        "name_servers:get_config"),
    Command("updateNamesrvConfig", "Change a configuration key of name servers.", (KEY, VALUE),
        "name_servers:update_config", CHANGES),
    Command("updateKvConfig", "Set a key of the name servers' key-value store.",
        (NAMESPACE, KEY, VALUE), "name_servers:put_kv", CHANGES),
    Command("deleteKvConfig", "Delete a key of it.", (NAMESPACE, KEY),
        "name_servers:delete_kv", CHANGES),
    Command("wipeWritePerm", "Make a broker group's queues read-only in routes.",
        (BROKER_NAME,), "name_servers:wipe_write_perm", CHANGES),
    Command("addWritePerm",
        "Make a broker group's queues writable in routes again.", (BROKER_NAME,),
        "name_servers:add_write_perm", CHANGES),
    Command("updateAclConfig", "Create an account, or change the given fields.",
        (*WHERE, ACCESS_KEY,
         Flag("s", "secretKey", "Its secret; required for a new account."),
         Flag("w", "whiteRemoteAddress", "Addresses without signatures."),
         Flag("i", "defaultTopicPerm", "DENY, PUB, SUB or PUB|SUB on topics not listed."),
         Flag("u", "defaultGroupPerm", "The same on groups."),
         Flag("t", "topicPerms", "On these topics, e.g. topicA=DENY,topicD=SUB."),
         Flag("g", "groupPerms", "On these groups, e.g. groupD=DENY,groupE=SUB."),
         Flag("m", "admin", "Whether the account is an admin's.", Kind.BOOLEAN), FORCE_LAST),
        "acl:update", CHANGES),
    Command("deleteAclConfig", "Delete an account.", (*WHERE, ACCESS_KEY, FORCE_LAST),
        "acl:delete", CHANGES),
    Command("updateGlobalWhiteAddr", "Set the addresses that need no account.",
        (*WHERE,
         Flag("g", "globalWhiteRemoteAddresses", "All of them, e.g. 10.10.103.*,192.168.0.*.",
              required=True),
         Flag("p", "aclFileFullPath", "The file, at Apache's brokers.")),
        "acl:white_addresses", CHANGES),
    Command("getAclConfig", "Show the accounts, without their secrets.", WHERE, "acl:show"),
    Command("clusterAclConfigVersion", "Show the brokers' versions of the accounts.", WHERE,
        "acl:version"),
)  # fmt: skip
