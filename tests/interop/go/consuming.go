package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const (
	virtualNodes = 10 // of a consumer on the consistent hash's ring
	resumeAfter  = 100 * time.Millisecond
	lockInterval = 2 * time.Second
)

var pulls sync.Map // name → rocketmq.PullConsumer

func described(message *primitive.MessageExt) Fields {
	return Fields{
		"topic": message.Topic, "body": string(message.Body), "tags": message.GetTags(),
		"keys": message.GetKeys(), "properties": message.GetProperties(),
		"queue": message.Queue.QueueId, "offset": message.QueueOffset,
		"unique":     message.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex),
		"reconsumed": message.ReconsumeTimes,
		"born_ms":    message.BornTimestamp, "store_ms": message.StoreTimestamp,
	}
}

func delivered(name string, message *primitive.MessageExt) {
	event := described(message)
	event["event"], event["of"], event["at_ms"] = "message", name, time.Now().UnixMilli()
	write(event)
}

func strategy(request *Request) consumer.AllocateStrategy {
	switch request.Strategy {
	case "circle":
		return consumer.AllocateByAveragelyCircle
	case "nearby":
		return consumer.AllocateByMachineNearby
	case "hash":
		return consumer.AllocateByConsistentHash(virtualNodes)
	case "config":
		var queues []*primitive.MessageQueue
		for _, text := range request.Queues { // broker/id
			broker, id, _ := strings.Cut(text, "/")
			number, err := strconv.Atoi(id)
			if err != nil {
				panic(err)
			}
			queues = append(queues, &primitive.MessageQueue{
				Topic: request.Topic, BrokerName: broker, QueueId: number,
			})
		}
		return consumer.AllocateByConfig(queues)
	case "room":
		return consumer.AllocateByMachineRoom(request.Rooms)
	}
	return consumer.AllocateByAveragely
}

func where(request *Request) consumer.ConsumeFromWhere {
	switch request.From {
	case "FIRST_OFFSET":
		return consumer.ConsumeFromFirstOffset
	case "TIMESTAMP":
		return consumer.ConsumeFromTimestamp
	}
	return consumer.ConsumeFromLastOffset
}

func selector(request *Request) consumer.MessageSelector {
	kind := consumer.TAG
	if request.SQL {
		kind = consumer.SQL92
	}
	return consumer.MessageSelector{Type: kind, Expression: request.Expression}
}

func startConsumer(request *Request) error {
	if request.Kind == "pull" {
		return startPull(request)
	}
	orderly := request.Kind == "orderly"
	options := []consumer.Option{
		consumer.WithGroupName(request.Group),
		consumer.WithInstance(request.Name),
		consumer.WithNsResolver(resolver(request)),
		consumer.WithConsumeFromWhere(where(request)),
		consumer.WithStrategy(strategy(request)),
		consumer.WithConsumerOrder(orderly),
		consumer.WithRebalanceLockInterval(lockInterval),
		consumer.WithSuspendCurrentQueueTimeMillis(resumeAfter),
	}
	if request.Timestamp != "" {
		options = append(options, consumer.WithConsumeTimestamp(request.Timestamp))
	}
	if request.AccessKey != "" {
		options = append(options, consumer.WithCredentials(credentials(request)))
	}
	if request.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if request.ReconsumeMax != 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(request.ReconsumeMax))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	name := request.Name
	listen := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			delivered(name, message)
			if request.Reply != "" {
				reply(request.Reply, message)
			}
			if message.ReconsumeTimes < request.Failures {
				if orderly {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				if next, found := primitive.GetConcurrentlyCtx(ctx); found {
					next.DelayLevelWhenNextConsume = request.Delay
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := made.Subscribe(request.Topic, selector(request), listen); err != nil {
		return err
	}
	stops.Store(name, made.Shutdown)
	return made.Start()
}

func reply(through string, message *primitive.MessageExt) {
	found, _ := producers.Load(through)
	answer, err := consumer.CreateReplyMessage(message, nil)
	if err == nil {
		answer.Body = []byte("re:" + string(message.Body))
		_, err = found.(rocketmq.Producer).SendSync(context.Background(), answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reply", err)
	}
}

func startPull(request *Request) error {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithGroupName(request.Group),
		consumer.WithInstance(request.Name),
		consumer.WithNsResolver(resolver(request)),
	)
	if err != nil {
		return err
	}
	if err := made.Subscribe(request.Topic, selector(request)); err != nil {
		return err
	}
	pulls.Store(request.Name, made)
	stops.Store(request.Name, made.Shutdown)
	return made.Start()
}

// pull is one pull of a queue; the offset that it is to go on from is committed, too.
func pull(request *Request) (interface{}, error) {
	found, ok := pulls.Load(request.Consumer)
	if !ok {
		return nil, fmt.Errorf("%s is not running", request.Consumer)
	}
	through := found.(rocketmq.PullConsumer)
	queue := &primitive.MessageQueue{
		Topic: request.Topic, BrokerName: request.Broker, QueueId: request.Queue,
	}
	ctx := context.Background()
	pulled, err := through.PullFrom(ctx, queue, request.Offset, request.Count)
	if err != nil {
		return nil, err
	}
	if err := through.UpdateOffset(queue, pulled.NextBeginOffset); err != nil {
		return nil, err
	}
	if err := through.PersistOffset(ctx, request.Topic); err != nil {
		return nil, err
	}
	messages := []Fields{}
	for _, message := range pulled.GetMessageExts() {
		messages = append(messages, described(message))
	}
	status := map[primitive.PullStatus]string{
		primitive.PullFound: "FOUND", primitive.PullNoNewMsg: "NO_NEW_MSG",
		primitive.PullNoMsgMatched: "NO_MATCHED_MSG", primitive.PullOffsetIllegal: "OFFSET_ILLEGAL",
	}[pulled.Status]
	return Fields{
		"status": status, "next": pulled.NextBeginOffset, "min": pulled.MinOffset,
		"max": pulled.MaxOffset, "messages": messages,
	}, nil
}
