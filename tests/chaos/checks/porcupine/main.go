// Judges histories of small automata with porcupine, one to a line of its input, and prints one
// verdict a line. An operation's action is a table: the state after each state, or -1 where it is
// illegal. The first state is 0. What has no answer returns after everything else, and its table is
// total: it may have had no effect.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Call   int64
	Return int64
	Action []int
}

func main() {
	model := porcupine.Model{
		Init: func() interface{} { return 0 },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			next := input.([]int)[state.(int)]
			return next >= 0, next
		},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var history []operation
		if err := json.Unmarshal(lines.Bytes(), &history); err != nil {
			panic(err)
		}
		var judged []porcupine.Operation
		for number, one := range history {
			judged = append(judged, porcupine.Operation{
				ClientId: number, Input: one.Action, Call: one.Call, Return: one.Return,
			})
		}
		fmt.Println(porcupine.CheckOperations(model, judged))
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
