// Command load puts one load on a JetStream stream with the Go client, and prints what it took:
//
//	load URLS ROW COUNT           ROW: one, many, large, pull, push
//	load URLS ROW COUNT RATE      ROW: paced, arrivals; an open loop of RATE a second
//
// One line of JSON: {"seconds": …, "latencies_ns": […]}.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
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
	if len(os.Args) != 4 && len(os.Args) != 5 {
		return fmt.Errorf("usage: load URLS ROW COUNT [RATE]")
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
		"one": one, "many": train{256, 128}.run, "large": train{64, 64 << 10}.run,
		"pull": pull, "push": push,
	}
	if len(os.Args) == 5 {
		rate, err := strconv.ParseFloat(os.Args[4], 64)
		if err != nil {
			return err
		}
		loads = map[string]func(context.Context, *nats.Conn, int) (took, error){
			"paced":    pacer{rate, false}.run,
			"arrivals": pacer{rate, true}.run,
		}
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

func body(size int) []byte { return bytes.Repeat([]byte("x"), size) }

func one(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := jetstream.New(connection)
	if err != nil {
		return took{}, err
	}
	latencies := make([]int64, 0, count)
	begun := time.Now()
	for range count {
		started := time.Now()
		if _, err := js.Publish(ctx, subject, body(128)); err != nil {
			return took{}, err
		}
		latencies = append(latencies, int64(time.Since(started)))
	}
	return took{time.Since(begun).Seconds(), latencies}, nil
}

// train publishes as the client pipelines: it lets `window` messages of `size` bytes wait for their answers.
type train struct{ window, size int }

func (t train) run(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(t.window))
	if err != nil {
		return took{}, err
	}
	answers, content := watch(ctx, t.window, count), body(t.size)
	begun := time.Now()
	for range count {
		at := time.Now()
		answer, err := js.PublishAsync(subject, content)
		if err != nil {
			return took{}, err
		}
		if err := answers.add(at, answer); err != nil {
			return took{}, err
		}
	}
	return answers.wait(begun)
}

type sent struct {
	at     time.Time
	answer jetstream.PubAckFuture
}

// answers collects the latencies of publishes, in their order.
type answers struct {
	waiting   chan sent
	ended     chan error
	latencies []int64
}

func watch(ctx context.Context, unanswered, count int) *answers {
	a := &answers{make(chan sent, unanswered), make(chan error, 1), make([]int64, 0, count)}
	go func() {
		for each := range a.waiting {
			select {
			case <-each.answer.Ok():
				a.latencies = append(a.latencies, int64(time.Since(each.at)))
			case err := <-each.answer.Err():
				a.ended <- err
				return
			case <-ctx.Done():
				a.ended <- ctx.Err()
				return
			}
		}
		a.ended <- nil
	}()
	return a
}

func (a *answers) add(at time.Time, answer jetstream.PubAckFuture) error {
	select {
	case a.waiting <- sent{at, answer}:
		return nil
	case err := <-a.ended:
		return err
	}
}

func (a *answers) wait(begun time.Time) (took, error) {
	close(a.waiting)
	if err := <-a.ended; err != nil {
		return took{}, err
	}
	return took{time.Since(begun).Seconds(), a.latencies}, nil
}

// pacer publishes at a fixed rate. A message counts from the time when it was due, until it is
// acknowledged or, with arrivals, until a push consumer has it.
type pacer struct {
	rate     float64
	arrivals bool
}

func (p pacer) run(ctx context.Context, connection *nats.Conn, count int) (took, error) {
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(count))
	if err != nil {
		return took{}, err
	}
	begun := time.Now()
	var arrived []int64
	all := newCounted(count)
	if p.arrivals {
		old, err := connection.JetStream()
		if err != nil {
			return took{}, err
		}
		see := func(message *nats.Msg) {
			due := int64(binary.BigEndian.Uint64(message.Data))
			arrived = append(arrived, int64(time.Since(begun))-due)
			all.see()
		}
		subscription, err := old.Subscribe(subject, see, nats.AckNone(), nats.DeliverNew())
		if err != nil {
			return took{}, err
		}
		defer subscription.Unsubscribe()
	}
	answers := watch(ctx, count, count)
	first := time.Since(begun)
	for number := range count {
		due := first + time.Duration(float64(number)*float64(time.Second)/p.rate)
		if ahead := due - time.Since(begun); ahead > 0 {
			time.Sleep(ahead)
		}
		content := body(128)
		binary.BigEndian.PutUint64(content, uint64(due))
		answer, err := js.PublishAsync(subject, content)
		if err != nil {
			return took{}, err
		}
		if err := answers.add(begun.Add(due), answer); err != nil {
			return took{}, err
		}
	}
	result, err := answers.wait(begun.Add(first))
	if err != nil || !p.arrivals {
		return result, err
	}
	if _, err := all.wait(ctx); err != nil {
		return took{}, err
	}
	result.Latencies = arrived
	return result, nil
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
