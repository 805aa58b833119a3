"""The client room: producers, consumers and admin for RocketMQ-compatible clusters.

asyncio first; `client.sync` has blocking versions.
"""

from raftmq.client.admin import Admin, ClusterInfo
from raftmq.client.batch import split_batch
from raftmq.client.compression import Compression, CompressionType
from raftmq.client.consumer import ConsumerConfig, PushConsumer
from raftmq.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NameServerUnreachable,
    NoRoute,
    RequestTimedOut,
    SendError,
    SendFailed,
    SendOutcomeUnknown,
    SplitFailed,
    TooManyInFlight,
    UnsupportedCompression,
    WriterFenced,
)
from raftmq.client.instance import InstanceConfig
from raftmq.client.listen import FailurePolicy, Later
from raftmq.client.litepull import LitePullConfig, LitePullConsumer
from raftmq.client.localoffsets import OffsetFile, OffsetStorage
from raftmq.client.locks import LockConfig
from raftmq.client.message import (
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
)
from raftmq.client.offsets import ConsumeFrom
from raftmq.client.processqueue import CacheLimits
from raftmq.client.producer import Producer
from raftmq.client.pull import PullConfig
from raftmq.client.pullconsumer import PullConsumer, PullResult, PullStatus
from raftmq.client.route import TopicRouteData
from raftmq.client.sending import SendConfig
from raftmq.client.simple import SimpleConsumer
from raftmq.client.sync import (
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingSimpleConsumer,
    BlockingTransactionProducer,
)
from raftmq.client.transaction import (
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from raftmq.client.writer import ExactlyOnceWriter
from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.allocation import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from raftmq.remoting.tls import ClientTls
from raftmq.remoting.tlsfile import client_tls_of

__all__ = [
    "Admin",
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateMachineRoomNearby",
    "AllocationStrategy",
    "BlockingConsumer",
    "BlockingLitePullConsumer",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingSimpleConsumer",
    "BlockingTransactionProducer",
    "BrokerRefused",
    "BrokerUnreachable",
    "CacheLimits",
    "ClientClosed",
    "ClientError",
    "ClientTls",
    "ClusterInfo",
    "Compression",
    "CompressionType",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerConfig",
    "Credentials",
    "ExactlyOnceWriter",
    "FailurePolicy",
    "InstanceConfig",
    "InvalidMessage",
    "Later",
    "LitePullConfig",
    "LitePullConsumer",
    "LockConfig",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NameServerUnreachable",
    "NoRoute",
    "OffsetFile",
    "OffsetStorage",
    "Producer",
    "PullConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "RequestTimedOut",
    "SendConfig",
    "SendError",
    "SendFailed",
    "SendOutcomeUnknown",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SplitFailed",
    "TooManyInFlight",
    "TopicRouteData",
    "TransactionListener",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "UnsupportedCompression",
    "WriterFenced",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "client_tls_of",
    "split_batch",
]
