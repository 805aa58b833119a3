# Sends a message to every broker group and reads it back, as any client would: `helm test`.
set -eu
mqadmin updateTopic -c "$CLUSTER" -t "$TOPIC" -r 1 -w 1
for group in $BROKER_GROUPS; do
    body="sent by helm test to $group at $(date +%s) by $$"
    left=30 # a new topic is in the routes in a moment
    until mqadmin sendMessage -t "$TOPIC" -b "$group" -i 0 -p "$body"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || exit 1
        sleep 1
    done
    mqadmin consume "$TOPIC" -q "$group:0" --from 10m -F text | grep -qxF "$body"
    echo "$group: sent and read"
done
