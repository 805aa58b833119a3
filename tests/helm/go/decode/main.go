// Decodes the Kubernetes objects on standard input (YAML documents) into the types of the APIs of
// Kubernetes, cert-manager and the Prometheus operator, strictly: a field that a type does not have, or has with another type, is an
// error. Prints a line for each object, and ends with status 1 if there was an error.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	for _, add := range []func(*runtime.Scheme) error{
		certmanager.AddToScheme, monitoring.AddToScheme,
	} {
		if err := add(scheme.Scheme); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	options := json.SerializerOptions{Yaml: true, Strict: true}
	decoder := json.NewSerializerWithOptions(
		json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, options)
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	wrong := false
	for {
		text, err := documents.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if line, failed := judge(decoder, text); line != "" {
			fmt.Println(line)
			wrong = wrong || failed
		}
	}
	if wrong {
		os.Exit(1)
	}
}

// judge returns a line about a document, "" for one without content, and whether it is wrong.
func judge(decoder runtime.Decoder, text []byte) (string, bool) {
	kind, err := json.DefaultMetaFactory.Interpret(mustJSON(text))
	if err != nil {
		return fmt.Sprintf("no object: %v", err), true
	}
	if kind.Kind == "" {
		return "", false
	}
	_, _, err = decoder.Decode(text, nil, nil)
	if err != nil {
		return fmt.Sprintf("wrong %s: %v", kind, err), true
	}
	return fmt.Sprintf("good %s", kind), false
}

// mustJSON returns YAML as JSON; what is no YAML is reported by whoever reads the result.
func mustJSON(text []byte) []byte {
	found, err := yaml.ToJSON(text)
	if err != nil {
		return nil
	}
	return found
}
