"""Frames recorded between the official Java client 5.3.3 and its servers, and spelled-out vectors.

HEADERS: request headers as they stood on the wire, with what they mean.
"""

ROUTE_REQUEST = (
    b'{"code":105,"extFields":{"ReqT":"0","topic":"cmp_batch_mwpzoxt1"},"flag":0,'
    b'"language":"JAVA","opaque":400,"serializeTypeCurrentRPC":"JSON","version":479}'
)
ROUTE_RESPONSE = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":6,"serializeTypeCurrentRPC":"JSON",'
    b'"version":479}'
)
ROUTE_BODY = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:30931","1":"127.0.0.1:30911",'
    b'"2":"127.0.0.1:30921"},"brokerName":"RaftNode00","cluster":"AnchorCluster",'
    b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
    b'"RaftNode00","perm":6,"readQueueNums":6,"topicSysFlag":0,"writeQueueNums":6}]}'
)
CLUSTER_BODY = (  # number keys without quotes
    b'{"brokerAddrTable":{"RaftNode00":{"brokerAddrs":{0:"127.0.0.1:30931",1:"127.0.0.1:30911",'
    b'2:"127.0.0.1:30921"},"brokerName":"RaftNode00","cluster":"AnchorCluster",'
    b'"enableActingMaster":false}},"clusterAddrTable":{"AnchorCluster":["RaftNode00"]}}'
)
STATS_BODY = (  # objects as keys
    b'{"offsetTable":{{"brokerName":"RaftNode00","queueId":0,"topic":"cmp_st_mwpzoxt1"}:'
    b'{"lastUpdateTimestamp":1795240385890,"maxOffset":2,"minOffset":0},{"brokerName":'
    b'"RaftNode00","queueId":1,"topic":"cmp_st_mwpzoxt1"}:{"lastUpdateTimestamp":1795240385893,'
    b'"maxOffset":2,"minOffset":0}},"topicPutTps":0.0}'
)
SEND_REQUEST = (
    b'{"code":310,"extFields":{"a":"cmp_p_mwpzoxt1","b":"cmp_auto_mwpzoxt1","c":"TBW102","d":"4",'
    b'"e":"1","f":"0","g":"1795240250622","h":"0","i":"UNIQ_KEY\\u0001FD00000000000000000000000000'
    b'00020F3130946E09684064FE0000\\u0002WAIT\\u0001true\\u0002","j":"0","k":"false","m":"false",'
    b'"n":"RaftNode00"},"flag":0,"language":"JAVA","opaque":54,"serializeTypeCurrentRPC":"JSON",'
    b'"version":479}'
)
SEND_RESPONSE = (
    b'{"code":0,"extFields":{"queueId":"0","transactionId":"FD0000000000000000000000000000020F3130'
    b'946E096841514B0163","msgId":"7F000001000078D30000000016E6E36C","TRACE_ON":"true",'
    b'"MSG_REGION":"DefaultRegion","queueOffset":"2"},"flag":1,"language":"JAVA","opaque":3737,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
PULL_REQUEST = (
    b'{"code":11,"extFields":{"queueId":"1","commitOffset":"0","subscription":"*",'
    b'"suspendTimeoutMillis":"20000","bname":"RaftNode00","sysFlag":"4","expressionType":"TAG",'
    b'"ReqT":"0","topic":"cmp_pull_mwpzoxt1","consumerGroup":"cmp_g_pull_mwpzoxt1",'
    b'"maxMsgNums":"16","queueOffset":"0","subVersion":"0","maxMsgBytes":"2147483647"},"flag":0,'
    b'"language":"JAVA","opaque":5430,"serializeTypeCurrentRPC":"JSON","version":479}'
)
PULL_NOT_FOUND = (
    b'{"code":19,"extFields":{"suggestWhichBrokerId":"0","groupSysFlag":"0","nextBeginOffset":"25",'
    b'"maxOffset":"25","minOffset":"0","topicSysFlag":"0"},"flag":1,"language":"JAVA",'
    b'"opaque":5435,"remark":"OFFSET_OVERFLOW_ONE","serializeTypeCurrentRPC":"JSON","version":479}'
)
OFFSET_UPDATE = (  # one-way
    b'{"code":15,"extFields":{"queueId":"1","commitOffset":"0","bname":"RaftNode00","ReqT":"0",'
    b'"topic":"cmp_batch_mwpzoxt1","consumerGroup":"cmp_rd3_mwpzoxt1"},"flag":2,"language":"JAVA",'
    b'"opaque":441,"serializeTypeCurrentRPC":"JSON","version":479}'
)
SEND_BACK = (
    b'{"code":36,"extFields":{"maxReconsumeTimes":"16","offset":"384221777","bname":"RaftNode00",'
    b'"delayLevel":"0","originTopic":"cmp_retry_mwpzoxt1","originMsgId":'
    b'"FD0000000000000000000000000000020F3130946E096840D5EE0152","unitMode":"false",'
    b'"group":"cmp_g_retry_mwpzoxt1"},"flag":0,"language":"JAVA","opaque":2095,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
END_TRANSACTION = (
    b'{"code":37,"extFields":{"producerGroup":"cmp_tpcommit_mwpzoxt1","bname":"RaftNode00",'
    b'"commitLogOffset":"384231922","topic":"cmp_txcommit_mwpzoxt1",'
    b'"msgId":"FD0000000000000000000000000000020F3130946E09684170BE0165","tranStateTableOffset":'
    b'"27","commitOrRollback":"8","transactionId":"FD0000000000000000000000000000020F3130946E0968'
    b'4170BE0165","fromTransactionCheck":"false"},"flag":2,"language":"JAVA","opaque":4040,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
CREATE_TOPIC = (
    b'{"code":17,"extFields":{"readQueueNums":"6","perm":"6","writeQueueNums":"6",'
    b'"topicFilterType":"SINGLE_TAG","topic":"cmp_create_mwpzoxt1","attributes":"",'
    b'"force":"false","defaultTopic":"TBW102","order":"false","topicSysFlag":"0"},"flag":0,'
    b'"language":"JAVA","opaque":4,"serializeTypeCurrentRPC":"JSON","version":479}'
)
REPLY_PUSH = (
    b'{"code":326,"extFields":{"queueId":"0","flag":"0","sysFlag":"0","reconsumeTimes":"0",'
    b'"storeTimestamp":"1795240393222","unitMode":"false","defaultTopic":"TBW102",'
    b'"bornHost":"127.0.0.1:46272","defaultTopicQueueNums":"4","producerGroup":"cmp_rp_mwpzoxt1",'
    b'"topic":"AnchorCluster_REPLY_TOPIC","bornTimestamp":"1795240393219",'
    b'"storeHost":"127.0.0.1:30931","properties":"MSG_TYPE\\u0001reply\\u0002"},"flag":0,'
    b'"language":"JAVA","opaque":63189,"serializeTypeCurrentRPC":"JSON","version":479}'
)

ALL_HEADERS = {
    "route request": ROUTE_REQUEST,
    "route response": ROUTE_RESPONSE,
    "send": SEND_REQUEST,
    "send response": SEND_RESPONSE,
    "pull": PULL_REQUEST,
    "pull response": PULL_NOT_FOUND,
    "offset update": OFFSET_UPDATE,
    "send back": SEND_BACK,
    "end transaction": END_TRANSACTION,
    "create topic": CREATE_TOPIC,
    "reply push": REPLY_PUSH,
}

# Binary header: 105, PYTHON, version 401, opaque 7, ext {topic: T}
BINARY_FRAME = bytes.fromhex(
    "00000025 01000021 0069 03 0191 00000007 00000000 00000000 0000000c0005 746f706963 00000001 54"
)
