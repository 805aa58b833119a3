"""The client room: producers, consumers and admin for RocketMQ-compatible clusters.

asyncio first; `client.sync` has blocking versions. See docs/architecture.md.
"""

from client.admin import Admin, ClusterInfo
from client.allocation import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from client.batch import split_batch
from client.compression import Compression, CompressionType
from client.consumer import ConsumerConfig, PushConsumer
from client.errors import (
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
)
from client.instance import InstanceConfig
from client.listen import FailurePolicy, Later
from client.litepull import LitePullConfig, LitePullConsumer
from client.localoffsets import OffsetFile, OffsetStorage
from client.locks import LockConfig
from client.message import (
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
)
from client.offsets import ConsumeFrom
from client.processqueue import CacheLimits
from client.producer import Producer
from client.pull import PullConfig
from client.pullconsumer import PullConsumer, PullResult, PullStatus
from client.route import TopicRouteData
from client.sending import SendConfig
from client.sync import (
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingTransactionProducer,
)
from client.transaction import (
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from remoting.acl.signature import Credentials
from remoting.tls import ClientTls
from remoting.tlsfile import client_tls_of

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
    "SplitFailed",
    "TooManyInFlight",
    "TopicRouteData",
    "TransactionListener",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "UnsupportedCompression",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "client_tls_of",
    "split_batch",
]
