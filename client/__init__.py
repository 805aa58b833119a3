"""The client room: producers, consumers and admin for RocketMQ-compatible clusters.

asyncio first; `client.sync` has blocking versions.
"""

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

from .admin import Admin, ClusterInfo
from .batch import split_batch
from .compression import Compression, CompressionType
from .consumer import ConsumerConfig, PushConsumer
from .errors import (
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
from .instance import InstanceConfig
from .listen import FailurePolicy, Later
from .litepull import LitePullConfig, LitePullConsumer
from .localoffsets import OffsetFile, OffsetStorage
from .locks import LockConfig
from .message import (
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
)
from .offsets import ConsumeFrom
from .processqueue import CacheLimits
from .producer import Producer
from .pull import PullConfig
from .pullconsumer import PullConsumer, PullResult, PullStatus
from .route import TopicRouteData
from .sending import SendConfig
from .simple import SimpleConsumer
from .sync import (
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingSimpleConsumer,
    BlockingTransactionProducer,
)
from .transaction import (
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from .writer import ExactlyOnceWriter

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
