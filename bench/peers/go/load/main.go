// Command load puts one load on a JetStream stream with the Go client, and prints what it took:
//
//	load URLS ROW COUNT    ROW: one, many, pull, push
//
// One line of JSON: {"seconds": …, "latencies_ns": […]}.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	stream  = "Bench"
	subject = "bench"
	window  = 256
	pulled  = 1024
	limit   = 2 * time.Minute
)

type took struct {
	Seconds   float64 `json:"seconds"`
	Latencies []int64 `json:"latencies_ns"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: load URLS ROW COUNT")
	}
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	connection, err := nats.Connect(os.Args[1])
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	loads := map[string]func(context.Context, *nats.Conn, int) (took, error){
		"one": one, "many": many, "pull": pull, "push": push,
	}
	load, known := loads[os.Args[2]]
	if !known {
		return fmt.Errorf("no row %q", os.Args[2])
	}
	found, err := load(ctx, connection, count)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func body() []byte { return bytes.Repeat([]byte("x"), 128) }

func one(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := jetstream.New(connection)
	if err != nil {
		return took{}, err
	}
	latencies := make([]int64, 0, count)
	begun := time.Now()
	for range count {
		started := time.Now()
		if _, err := js.Publish(ctx, subject, body()); err != nil {
			return took{}, err
		}
		latencies = append(latencies, int64(time.Since(started)))
	}
	return took{time.Since(begun).Seconds(), latencies}, nil
}

// many publishes as the client pipelines: it lets `window` messages wait for their answers.
func many(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(window))
	if err != nil {
		return took{}, err
	}
	latencies := make([]int64, 0, count)
	type sent struct {
		at     time.Time
		answer jetstream.PubAckFuture
	}
	waiting := make(chan sent, window)
	ended := make(chan error, 1)
	go func() {
		for each := range waiting {
			select {
			case <-each.answer.Ok():
				latencies = append(latencies, int64(time.Since(each.at)))
			case err := <-each.answer.Err():
				ended <- err
				return
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
		ended <- nil
	}()
	begun := time.Now()
	for range count {
		at := time.Now()
		answer, err := js.PublishAsync(subject, body())
		if err != nil {
			return took{}, err
		}
		select {
		case waiting <- sent{at, answer}:
		case err := <-ended:
			return took{}, err
		}
	}
	close(waiting)
	if err := <-ended; err != nil {
		return took{}, err
	}
	return took{time.Since(begun).Seconds(), latencies}, nil
}

// counted waits until `count` messages were seen, and returns the time since the first.
type counted struct {
	count int
	seen  int
	first time.Time
	done  chan float64
}

func newCounted(count int) *counted { return &counted{count: count, done: make(chan float64, 1)} }

func (c *counted) see() {
	if c.seen == 0 {
		c.first = time.Now()
	}
	c.seen++
	if c.seen == c.count {
		c.done <- time.Since(c.first).Seconds()
	}
}

func (c *counted) wait(ctx context.Context) (took, error) {
	select {
	case seconds := <-c.done:
		return took{Seconds: seconds}, nil
	case <-ctx.Done():
		return took{}, ctx.Err()
	}
}

func pull(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := jetstream.New(connection)
	if err != nil {
		return took{}, err
	}
	consumer, err := js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return took{}, err
	}
	all := newCounted(count)
	running, err := consumer.Consume(func(jetstream.Msg) { all.see() }, jetstream.PullMaxMessages(pulled))
	if err != nil {
		return took{}, err
	}
	defer running.Stop()
	return all.wait(ctx)
}

func push(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := connection.JetStream()
	if err != nil {
		return took{}, err
	}
	all := newCounted(count)
	subscription, err := js.Subscribe(subject, func(*nats.Msg) { all.see() }, nats.AckNone(), nats.DeliverAll())
	if err != nil {
		return took{}, err
	}
	defer subscription.Unsubscribe()
	return all.wait(ctx)
}
