//go:build tools

// Names Helm, so that go.mod and go.sum pin it.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
