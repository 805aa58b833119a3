// The official Go client behind lines of JSON: a request a line in, answers and events out.
// tests/interop/driver.py says what the requests are.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const lineMax = 16 << 20 // bytes of one request

// Request has the fields of every kind of request.
type Request struct {
	ID            int64    `json:"id"`
	Do            string   `json:"do"`
	Name          string   `json:"name"`
	Group         string   `json:"group"`
	Namesrv       string   `json:"namesrv"`
	Topic         string   `json:"topic"`
	Retries       int      `json:"retries"`
	Transactional bool     `json:"transactional"`
	Selector      string   `json:"selector"`
	Producer      string   `json:"producer"`
	How           string   `json:"how"`
	Messages      []Wanted `json:"messages"`
	AccessKey     string   `json:"access_key"`
	SecretKey     string   `json:"secret_key"`
	Body          string   `json:"body"`
	TTLMs         int64    `json:"ttl_ms"`
	Kind          string   `json:"kind"`
	Expression    string   `json:"expression"`
	SQL           bool     `json:"sql"`
	From          string   `json:"from"`
	Timestamp     string   `json:"timestamp"`
	Broadcast     bool     `json:"broadcast"`
	Strategy      string   `json:"strategy"`
	Broker        string   `json:"broker"`
	Queues        []string `json:"queues"`
	Rooms         []string `json:"rooms"`
	Failures      int32    `json:"failures"`
	Delay         int      `json:"delay"`
	ReconsumeMax  int32    `json:"reconsume_max"`
	Reply         string   `json:"reply"`
	Consumer      string   `json:"consumer"`
	Queue         int      `json:"queue"`
	Offset        int64    `json:"offset"`
	Count         int      `json:"count"`
}

// Wanted is a message to be sent.
type Wanted struct {
	Body       string            `json:"body"`
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Shard      string            `json:"shard"`
	Queue      int               `json:"queue"`
	Delay      int               `json:"delay"`
	Decide     string            `json:"decide"`
	Properties map[string]string `json:"properties"`
}

// Fields is an answer or an event.
type Fields map[string]interface{}

var output sync.Mutex

func write(object interface{}) {
	line, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		os.Exit(0) // whoever drove us is gone
	}
}

func perform(request *Request) (interface{}, error) {
	switch request.Do {
	case "producer":
		return nil, startProducer(request)
	case "send":
		return send(request)
	case "request":
		return ask(request)
	case "consumer":
		return nil, startConsumer(request)
	case "pull":
		return pull(request)
	case "stop":
		stop, found := stops.LoadAndDelete(request.Name)
		if !found {
			return nil, fmt.Errorf("%s is not running", request.Name)
		}
		return nil, stop.(func() error)()
	}
	return nil, fmt.Errorf("unknown request %s", request.Do)
}

func answer(line []byte) {
	var request Request
	if err := json.Unmarshal(line, &request); err != nil {
		panic(err)
	}
	// The client panics in its caller's goroutine where it takes an answer for granted.
	defer func() {
		if reason := recover(); reason != nil {
			fmt.Fprintln(os.Stderr, "recovered:", reason, string(debug.Stack()))
			write(Fields{"id": request.ID, "error": fmt.Sprint("panic: ", reason)})
		}
	}()
	ok, err := perform(&request)
	if err != nil {
		write(Fields{"id": request.ID, "error": err.Error()})
	} else {
		write(Fields{"id": request.ID, "ok": ok})
	}
}

func main() {
	rlog.SetLogLevel("warn")
	// An asynchronous send whose answer does not come ends the client's goroutine with a panic
	// (producer.go of 2.1.2 goes on after its error); without a handler the process ends, too.
	primitive.PanicHandler = func(reason interface{}) {
		fmt.Fprintln(os.Stderr, "recovered:", reason)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<16), lineMax)
	for lines.Scan() {
		go answer(append([]byte(nil), lines.Bytes()...))
	}
}
