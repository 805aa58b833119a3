// Drives RocketMQ 5's own Go client, unmodified: reads a step per line as JSON from its standard
// input, answers each with a line. The steps are those of python5/driver.py; this client recalls no
// messages.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	lineSizeMax = 1 << 24
	sendTimeout = 10 * time.Second
)

// step has the arguments of all steps; what one does not name is zero.
type step struct {
	Topics     []string `json:"topics"`
	Topic      string   `json:"topic"`
	Body       string   `json:"body"`
	Group      string   `json:"group"`
	DelayS     float64  `json:"delay_s"`
	Tag        string   `json:"tag"`
	Key        string   `json:"key"`
	End        string   `json:"end"`
	WaitS      float64  `json:"wait_s"`
	Count      int32    `json:"count"`
	InvisibleS float64  `json:"invisible_s"`
	Seconds    float64  `json:"seconds"`
	MessageID  string   `json:"message_id"`
}

type driver struct {
	endpoint string
	account  credentials.SessionCredentials
	producer rmq.Producer
	simple   rmq.SimpleConsumer
	pushes   []rmq.PushConsumer
	held     map[string]*rmq.MessageView
	load     *load

	lock   sync.Mutex // over what the client's own goroutines write
	found  [][]any
	failed map[string]bool
	asked  []string
}

// load is a series of numbers that are sent one after the other.
type load struct {
	lock   sync.Mutex
	sent   []int
	failed []string
	stop   chan struct{}
	done   chan struct{}
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}

func (d *driver) config(group string) *rmq.Config {
	account := d.account
	return &rmq.Config{Endpoint: d.endpoint, ConsumerGroup: group, Credentials: &account}
}

func (d *driver) produce(s step) (any, error) {
	checker := &rmq.TransactionChecker{
		Check: func(message *rmq.MessageView) rmq.TransactionResolution {
			d.lock.Lock()
			defer d.lock.Unlock()
			d.asked = append(d.asked, string(message.GetBody()))
			return rmq.COMMIT
		},
	}
	made, err := rmq.NewProducer(
		d.config(""), rmq.WithTopics(s.Topics...), rmq.WithTransactionChecker(checker))
	if err != nil {
		return nil, err
	}
	d.producer = made
	return nil, made.Start()
}

func message(s step) *rmq.Message {
	made := &rmq.Message{Topic: s.Topic, Body: []byte(s.Body)}
	if s.Tag != "" {
		made.SetTag(s.Tag)
	}
	if s.Key != "" {
		made.SetKeys(s.Key)
	}
	if s.Group != "" {
		made.SetMessageGroup(s.Group)
	}
	if s.DelayS > 0 {
		made.SetDelayTimestamp(time.Now().Add(seconds(s.DelayS)))
	}
	made.AddProperty("from", "sdk")
	return made
}

func (d *driver) send(s step) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	receipts, err := d.producer.Send(ctx, message(s))
	if err != nil {
		return nil, err
	}
	return []any{receipts[0].MessageID, receipts[0].Offset, ""}, nil
}

func (d *driver) transact(s step) (any, error) {
	transaction := d.producer.BeginTransaction()
	_, err := d.producer.SendWithTransaction(context.Background(), message(s), transaction)
	if err != nil {
		return nil, err
	}
	switch s.End {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return nil, err
}

func (d *driver) checked(step) (any, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	return append([]string{}, d.asked...), nil
}

func (d *driver) beginLoad(s step) (any, error) {
	begun := &load{stop: make(chan struct{}), done: make(chan struct{})}
	d.load = begun
	go func() {
		defer close(begun.done)
		for number := 0; ; number++ {
			select {
			case <-begun.stop:
				return
			default:
			}
			_, err := d.send(step{Topic: s.Topic, Body: strconv.Itoa(number)})
			begun.lock.Lock()
			if err == nil {
				begun.sent = append(begun.sent, number)
			} else {
				begun.failed = append(begun.failed, err.Error())
			}
			begun.lock.Unlock()
		}
	}()
	return nil, nil
}

func (d *driver) loadSize(step) (any, error) {
	d.load.lock.Lock()
	defer d.load.lock.Unlock()
	return len(d.load.sent), nil
}

func (d *driver) endLoad(step) (any, error) {
	close(d.load.stop)
	<-d.load.done
	return []any{d.load.sent, d.load.failed}, nil
}

func expressions(s step) map[string]*rmq.FilterExpression {
	tag := s.Tag
	if tag == "" {
		tag = "*"
	}
	return map[string]*rmq.FilterExpression{s.Topic: rmq.NewFilterExpression(tag)}
}

func (d *driver) subscribe(s step) (any, error) {
	wait := seconds(max(s.WaitS, 1))
	made, err := rmq.NewSimpleConsumer(d.config(s.Group), rmq.WithSimpleAwaitDuration(wait),
		rmq.WithSimpleSubscriptionExpressions(expressions(s)))
	if err != nil {
		return nil, err
	}
	d.simple = made
	return nil, made.Start()
}

func (d *driver) receive(s step) (any, error) {
	count, invisible := s.Count, s.InvisibleS
	if count == 0 {
		count = 16
	}
	if invisible == 0 {
		invisible = 15
	}
	found := []any{}
	messages, err := d.simple.Receive(context.Background(), count, seconds(invisible))
	if err != nil {
		if strings.Contains(err.Error(), "40401") || strings.Contains(err.Error(), "NOT_FOUND") {
			return found, nil // there is none now
		}
		return nil, err
	}
	for _, one := range messages {
		d.held[one.GetMessageId()] = one
		tag := ""
		if one.GetTag() != nil {
			tag = *one.GetTag()
		}
		found = append(found, []any{
			one.GetMessageId(), string(one.GetBody()), tag, one.GetProperties()})
	}
	return found, nil
}

func (d *driver) ack(s step) (any, error) {
	one := d.held[s.MessageID]
	delete(d.held, s.MessageID)
	return nil, d.simple.Ack(context.Background(), one)
}

func (d *driver) hide(s step) (any, error) {
	return nil, d.simple.ChangeInvisibleDuration(d.held[s.MessageID], seconds(s.Seconds))
}

func (d *driver) listen(s step) (any, error) {
	listener := &rmq.FuncMessageListener{Consume: d.consume}
	made, err := rmq.NewPushConsumer(d.config(s.Group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(expressions(s)),
		rmq.WithPushMessageListener(listener),
		rmq.WithPushConsumptionThreadCount(4),
		rmq.WithPushMaxCacheMessageCount(1024))
	if err != nil {
		return nil, err
	}
	d.pushes = append(d.pushes, made)
	return nil, made.Start()
}

func (d *driver) consume(one *rmq.MessageView) rmq.ConsumerResult {
	d.lock.Lock()
	defer d.lock.Unlock()
	body := string(one.GetBody())
	d.found = append(d.found, []any{body, one.GetDeliveryAttempt(), one.GetMessageId()})
	if strings.HasPrefix(body, "fail") && !d.failed[body] {
		d.failed[body] = true
		return rmq.FAILURE
	}
	return rmq.SUCCESS
}

func (d *driver) heard(step) (any, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	return append([][]any{}, d.found...), nil
}

func (d *driver) stop(step) (any, error) {
	if d.producer != nil {
		_ = d.producer.GracefulStop()
	}
	if d.simple != nil {
		_ = d.simple.GracefulStop()
	}
	for _, push := range d.pushes {
		_ = push.GracefulStop()
	}
	return nil, nil
}

func (d *driver) answer(line []byte, steps map[string]func(step) (any, error)) (string, any) {
	var name string
	var arguments step
	asked := []any{&name, &arguments}
	if err := json.Unmarshal(line, &asked); err != nil {
		return name, map[string]any{"error": err.Error()}
	}
	act, known := steps[name]
	if !known {
		return name, map[string]any{"error": fmt.Sprintf("no step %s", name)}
	}
	value, err := act(arguments)
	if err != nil {
		return name, map[string]any{"error": err.Error()}
	}
	return name, map[string]any{"value": value}
}

func main() {
	answers := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // whatever else prints
	d := &driver{
		endpoint: os.Args[1],
		account:  credentials.SessionCredentials{AccessKey: os.Args[2], AccessSecret: os.Args[3]},
		held:     map[string]*rmq.MessageView{},
		failed:   map[string]bool{},
	}
	steps := map[string]func(step) (any, error){
		"produce": d.produce, "send": d.send, "transact": d.transact, "checked": d.checked,
		"begin_load": d.beginLoad, "load_size": d.loadSize, "end_load": d.endLoad,
		"subscribe": d.subscribe, "receive": d.receive, "ack": d.ack, "hide": d.hide,
		"listen": d.listen, "heard": d.heard, "stop": d.stop,
	}
	lines := bufio.NewReaderSize(os.Stdin, lineSizeMax)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		name, answer := d.answer(line, steps)
		_ = answers.Encode(answer)
		if name == "stop" {
			return
		}
	}
}
