"""Known offenders against the rules of tests/test_tidy.py, which have to go: lists that shrink.

Who mends one takes it off. A new entry needs a better reason than haste.
"""

# Bases that may be inherited from, because what inherits is one of them; with the reason.
ALLOWED_BASES = {
    "View": "an empty struct of msgspec's: how an answer is written, and no field",
    "Input": "an empty struct of msgspec's: how a request is read, and no field",
    "ServerOptions": "the configuration keys that all servers share; a configuration has them "
    "flat, as its file has, and is taken where those keys are",
    "PeerTlsOptions": "the same, with the keys for links between replicas",
    "Stored": "a record; a frame and a batch that wait are both one, and are answered as such",
    "VersionedTable": "the tables of topics and groups are used as one by broker.tables.state",
    "Producer": "RocketMQ's transaction producer is a producer: whoever takes one takes it, too",
    "BlockingProducer": "the same",
    "Cluster": "a cluster of containers is one: faults and workloads take either",
    "OsDisk": "the harness's disk is a real one, and stands where a broker wants that",
    "OsFile": "the same, for its files",
    **dict.fromkeys(
        (
            "AccountView",
            "ConnectionItem",
            "ConsumerGroupItem",
            "ConsumerQueueView",
            "MessageView",
            "ModeView",
            "QueueView",
            "ResentView",
            "SentView",
            "SubscriptionGroupView",
            "TopicView",
        ),
        "a broker's answer, which the cluster API shows with the group's name beside its fields",
    ),
}

# Attributes that are set late because somebody else's class wants it so, with the reason.
ALLOWED_ATTRIBUTES = {
    "chaos/cluster/docker.py::_Unix.sock": "http.client declares it, and connect has to set it",
}

# Files that import each other, directly or through others.
IN_CIRCLES: set[str] = set()

# Classes that inherit from a class of the product.
INHERITORS: set[str] = {
    # chaos
    "chaos/workloads/retries.py::Recorded(PushConsumer)",
    "chaos/workloads/retries.py::RecordedSendBack(SendBack)",
}

# Methods that raise NotImplementedError.
STUBS: set[str] = set()

# Attributes that come into being outside __init__.
LATE_ATTRIBUTES: set[str] = set()

# Functions that are set as an attribute of another object.
PLANTED: set[str] = set()

# Uses of private members of the product in tests (tests.tidy.privates). Each such use breaks when
# the product changes its inside, so the number only falls.
PRIVATE_USES_MAX = 168

# Tests that plant faults or watch rules: what they replace is private by its nature.
PLANTERS = ("tests/fuzz/planted.py", "tests/model/", "tests/simulator/")
