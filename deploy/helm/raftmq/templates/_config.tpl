{{/* The configuration files. Keys are those of docs/configuration.md; `settings` of the values override them. */}}

{{/* A dictionary as key=value lines. Numbers of YAML are floating-point here: 5000000, not 5e+06. */}}
{{- define "raftmq.properties" -}}
{{- range $key, $value := . }}
{{ $key }}={{ if kindIs "float64" $value }}{{ if eq (floor $value) $value }}{{ printf "%.0f" $value }}{{ else }}{{ $value }}{{ end }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end -}}

{{/* What brokers, name servers and proxies have in common: the HTTP API, accounts, TLS. In JSON. */}}
{{- define "raftmq.common" -}}
{{- $keys := dict
  "bindAddress" "0.0.0.0"
  "httpBindAddress" "0.0.0.0"
  "httpTokensFile" "/etc/raftmq/secrets/tokens.json"
-}}
{{- if include "raftmq.withAccounts" . -}}
{{- $keys = merge $keys (dict "aclEnable" .Values.accounts.enforce "aclFile" "/etc/raftmq/accounts/plain_acl.yml") -}}
{{- end -}}
{{- if include "raftmq.withTls" . -}}
{{- $keys = merge $keys (dict
  "tlsServerMode" .Values.tls.mode
  "tlsServerCertPath" "/etc/raftmq/tls/tls.crt"
  "tlsServerKeyPath" "/etc/raftmq/tls/tls.key"
  "tlsEnable" "true"
  "tlsClientTrustCertPath" "/etc/raftmq/tls/ca.crt"
  "httpTlsMode" .Values.tls.mode
) -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{- define "raftmq.brokerConf" -}}
{{- $keys := include "raftmq.common" . | fromJson -}}
{{- $keys = merge (dict
  "brokerClusterName" .Values.clusterName
  "storePathRootDir" "/var/lib/raftmq/store"
  "flushDiskType" .Values.broker.flushDiskType
  "mappedFileSizeCommitLog" "256MiB"
  "enableDLegerCommitLog" "true"
  "dLegerBindAddress" "0.0.0.0"
) $keys -}}
{{- if include "raftmq.withTls" . -}}
{{- $keys = merge (dict
  "raftTlsMode" .Values.tls.mode
  "raftTlsCertPath" "/etc/raftmq/raft-tls/tls.crt"
  "raftTlsKeyPath" "/etc/raftmq/raft-tls/tls.key"
  "raftTlsTrustCertPath" "/etc/raftmq/raft-tls/ca.crt"
) $keys -}}
{{- end -}}
{{- include "raftmq.properties" (mergeOverwrite $keys (deepCopy .Values.broker.settings)) | trim -}}
{{- end -}}

{{- define "raftmq.nameServerConf" -}}
{{- $keys := include "raftmq.common" . | fromJson -}}
{{- $keys = merge (dict
  "storePath" "/var/lib/raftmq"
  "registrationKeyFile" "/etc/raftmq/secrets/registration.key"
  "registrationsMustBeSigned" "true"
  "httpClusterTokenFile" "/etc/raftmq/secrets/cluster.token"
) $keys -}}
{{- if not (include "raftmq.withTls" .) -}}
{{- $_ := set $keys "httpClusterTokenInTheClear" "true" -}}
{{- end -}}
{{- include "raftmq.properties" (mergeOverwrite $keys (deepCopy .Values.nameServer.settings)) | trim -}}
{{- end -}}

{{- define "raftmq.proxyConf" -}}
{{- $keys := include "raftmq.common" . | fromJson -}}
{{- include "raftmq.properties" (mergeOverwrite $keys (deepCopy .Values.proxy.settings)) | trim -}}
{{- end -}}

{{/* Of mqadmin in a pod; RAFTMQ_TLS_CONFIG_FILE names it. */}}
{{- define "raftmq.tlsProperties" -}}
tls.client.trustCertPath=/etc/raftmq/tls/ca.crt
{{- end -}}
