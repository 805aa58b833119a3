"""Producers, consumers and administration for RocketMQ-compatible clusters.

The clients use asyncio; `client.sync` has blocking versions.
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
from raftmq.remoting.tls_file import client_tls_of

from .admin import Admin, ClusterInfo
from .compression import Compression, CompressionType
from .consumer.consume_service import FailurePolicy, Later
from .consumer.lite_pull_consumer import LitePullConfig, LitePullConsumer
from .consumer.local_offset_store import OffsetFile, OffsetStorage
from .consumer.offsets import ConsumeFrom
from .consumer.process_queue import CacheLimits
from .consumer.pull_consumer import PullConsumer, PullResult, PullStatus
from .consumer.push_consumer import ConsumerConfig, PushConsumer
from .consumer.queue_locks import LockConfig
from .consumer.queue_puller import PullConfig
from .consumer.simple_consumer import SimpleConsumer
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
from .message import (
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
)
from .producer.exactly_once_writer import ExactlyOnceWriter
from .producer.producer import Producer
from .producer.send_frame import split_batch
from .producer.sender import SendConfig
from .producer.transaction import (
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from .route import TopicRouteData
from .sync import (
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingSimpleConsumer,
    BlockingTransactionProducer,
)

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
