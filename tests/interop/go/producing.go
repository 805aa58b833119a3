package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const callbackTimeout = 30 * time.Second

var (
	producers     sync.Map // name → rocketmq.Producer
	transactional sync.Map // name → rocketmq.TransactionProducer
	decisions     sync.Map // body → what ExecuteLocalTransaction is to answer
	stops         sync.Map // name → func() error
)

func resolver(request *Request) primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{request.Namesrv})
}

func credentials(request *Request) primitive.Credentials {
	return primitive.Credentials{AccessKey: request.AccessKey, SecretKey: request.SecretKey}
}

func startProducer(request *Request) error {
	options := []producer.Option{
		producer.WithGroupName(request.Group),
		producer.WithInstanceName(request.Name),
		producer.WithNsResolver(resolver(request)),
		producer.WithRetry(request.Retries),
	}
	if request.AccessKey != "" {
		options = append(options, producer.WithCredentials(credentials(request)))
	}
	switch request.Selector {
	case "hash":
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	case "queue":
		options = append(options, producer.WithQueueSelector(chosen{}))
	}
	if request.Transactional {
		made, err := rocketmq.NewTransactionProducer(decider{request.Name}, options...)
		if err != nil {
			return err
		}
		transactional.Store(request.Name, made)
		stops.Store(request.Name, made.Shutdown)
		return made.Start()
	}
	made, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	producers.Store(request.Name, made)
	stops.Store(request.Name, made.Shutdown)
	return made.Start()
}

// chosen sends to the queue whose number the message names.
type chosen struct{}

func (chosen) Select(
	message *primitive.Message, queues []*primitive.MessageQueue, _ string,
) *primitive.MessageQueue {
	for _, queue := range queues {
		if fmt.Sprint(queue.QueueId) == message.GetProperty("QUEUE") {
			return queue
		}
	}
	return nil
}

func message(topic string, wanted Wanted) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(wanted.Body))
	if wanted.Tags != "" {
		made.WithTag(wanted.Tags)
	}
	if wanted.Keys != "" {
		made.WithKeys([]string{wanted.Keys})
	}
	if wanted.Shard != "" {
		made.WithShardingKey(wanted.Shard)
	}
	if wanted.Delay != 0 {
		made.WithDelayTimeLevel(wanted.Delay)
	}
	for key, value := range wanted.Properties {
		made.WithProperty(key, value)
	}
	made.WithProperty("QUEUE", fmt.Sprint(wanted.Queue))
	return made
}

func failure(err error) Fields {
	return Fields{"ok": false, "error": err.Error()}
}

func result(sent *primitive.SendResult, err error) Fields {
	if err != nil {
		return failure(err)
	}
	status := "SEND_OK"
	if sent.Status != primitive.SendOK {
		status = fmt.Sprint(sent.Status)
	}
	return Fields{
		"ok": sent.Status == primitive.SendOK, "status": status, "offset": sent.QueueOffset,
		"queue": sent.MessageQueue.QueueId, "unique": sent.MsgID, "place": sent.OffsetMsgID,
	}
}

func send(request *Request) ([]Fields, error) {
	ctx := context.Background()
	var messages []*primitive.Message
	for _, wanted := range request.Messages {
		messages = append(messages, message(request.Topic, wanted))
	}
	if request.How == "transaction" {
		return sendTransactions(request, messages)
	}
	found, ok := producers.Load(request.Producer)
	if !ok {
		return nil, fmt.Errorf("%s is not running", request.Producer)
	}
	through := found.(rocketmq.Producer)
	if request.How == "batch" {
		return []Fields{result(through.SendSync(ctx, messages...))}, nil
	}
	if request.How == "async" {
		return sendAsync(through, messages)
	}
	var results []Fields
	for _, one := range messages {
		if request.How == "oneway" {
			err := through.SendOneWay(ctx, one)
			if err != nil {
				results = append(results, failure(err))
			} else {
				results = append(results, Fields{"ok": true})
			}
			continue
		}
		results = append(results, result(through.SendSync(ctx, one)))
	}
	return results, nil
}

func sendAsync(through rocketmq.Producer, messages []*primitive.Message) ([]Fields, error) {
	type outcome struct {
		index  int
		fields Fields
	}
	results := make([]Fields, len(messages))
	// The client may call back twice for one message: after an error it goes on.
	outcomes := make(chan outcome, 2*len(messages))
	for index, one := range messages {
		index := index
		err := through.SendAsync(context.Background(),
			func(_ context.Context, sent *primitive.SendResult, err error) {
				outcomes <- outcome{index, result(sent, err)}
			}, one)
		if err != nil {
			outcomes <- outcome{index, failure(err)}
		}
	}
	timeout := time.After(callbackTimeout)
	for left := len(messages); left > 0; {
		select {
		case got := <-outcomes:
			if results[got.index] == nil {
				left--
				results[got.index] = got.fields
			}
		case <-timeout:
			return nil, fmt.Errorf("callbacks outstanding: %d", left)
		}
	}
	return results, nil
}

// ---- transactions

type decider struct{ name string }

func state(decision string) primitive.LocalTransactionState {
	switch decision {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (decider) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	decision, _ := decisions.Load(string(message.Body))
	return state(decision.(string))
}

func (d decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	event := described(message)
	event["event"], event["of"] = "check", d.name
	write(event)
	return state(message.GetProperty("check"))
}

func sendTransactions(request *Request, messages []*primitive.Message) ([]Fields, error) {
	found, ok := transactional.Load(request.Producer)
	if !ok {
		return nil, fmt.Errorf("%s is not running", request.Producer)
	}
	var results []Fields
	for index, one := range messages {
		decisions.Store(request.Messages[index].Body, request.Messages[index].Decide)
		sent, err := found.(rocketmq.TransactionProducer).SendMessageInTransaction(
			context.Background(), one)
		if err != nil {
			results = append(results, failure(err))
		} else {
			results = append(results, result(sent.SendResult, nil))
		}
	}
	return results, nil
}

func ask(request *Request) (interface{}, error) {
	found, ok := producers.Load(request.Producer)
	if !ok {
		return nil, fmt.Errorf("%s is not running", request.Producer)
	}
	wanted := message(request.Topic, Wanted{Body: request.Body})
	ttl := time.Duration(request.TTLMs) * time.Millisecond
	reply, err := found.(rocketmq.Producer).Request(context.Background(), ttl, wanted)
	if err != nil {
		return nil, err
	}
	return Fields{"body": string(reply.Body)}, nil
}
