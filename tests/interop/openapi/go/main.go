// What a user does with a generated client, as python_driver.py does: `driver URL`.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"time"

	"raftmq/openapi/cluster"
)

const patience = 120 * time.Second

func main() {
	client, err := cluster.NewClientWithResponses(os.Args[1])
	need(err)
	ctx := context.Background()
	view, err := client.GetClusterWithResponse(ctx)
	need(err)
	made := put(ctx, client)
	again := put(ctx, client)
	listed := func() bool {
		topics, err := client.ListTopicsWithResponse(ctx, &cluster.ListTopicsParams{Q: to("Generated")})
		need(err)
		return len(topics.JSON200.Items) > 0
	}
	for deadline := time.Now().Add(patience); !listed(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			log.Fatal("the topic is not listed")
		}
	}
	sent, err := client.SendMessageWithResponse(ctx, nil, cluster.SendMessageJSONRequestBody{
		Topic: "Generated", Body: to("hello"), Tags: to("t"), Keys: to("k"),
	})
	need(err)
	messages, err := client.ListTopicMessagesWithResponse(
		ctx, "Generated", &cluster.ListTopicMessagesParams{Tag: to("t")})
	need(err)
	found := [][]any{}
	for _, one := range messages.JSON200.Items {
		found = append(found, []any{one.OffsetMsgId, one.Text, one.Tags, one.Keys})
	}
	gone, err := client.DeleteTopicWithResponse(
		ctx, "Generated", &cluster.DeleteTopicParams{IfMatch: to("*")})
	need(err)
	need(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"leader": view.JSON200.Groups[0].Leader,
		"made":   outcomes(made.JSON200),
		"again":  again.ApplicationproblemJSON412.Code,
		"sent":   sent.JSON200.OffsetMsgId,
		"found":  found,
		"gone":   outcomes(gone.JSON200),
	}))
}

func put(ctx context.Context, client *cluster.ClientWithResponses) *cluster.PutTopicResponse {
	body := cluster.PutTopicJSONRequestBody{
		ReadQueueNums: to(2), WriteQueueNums: to(2),
		MessageType: to(cluster.PutTopicJSONBodyMessageType("NORMAL")),
	}
	answer, err := client.PutTopicWithResponse(
		ctx, "Generated", &cluster.PutTopicParams{IfNoneMatch: to("*")}, body)
	need(err)
	return answer
}

func outcomes(changed *cluster.ChangedInGroups) []string {
	said := []string{}
	for _, one := range changed.Results {
		said = append(said, string(one.Outcome))
	}
	return said
}

func to[T any](value T) *T {
	return &value
}

func need(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
