//go:build tools

// Package tools names what bench.peers builds, so that go.mod pins it.
package tools

import _ "github.com/nats-io/nats-server/v2"
