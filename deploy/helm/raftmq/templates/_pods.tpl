{{/* Parts of pods. */}}

{{- define "raftmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001 # may read the mounted secrets, and write the volume
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "raftmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What every server's pod begins with: (dict "root" $ "of" .Values.broker) */}}
{{- define "raftmq.podCommon" -}}
serviceAccountName: {{ include "raftmq.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false # their variables begin with RAFTMQ_, as those of the configuration do
securityContext:
  {{- include "raftmq.podSecurity" .root | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Keep pods with these labels apart: (dict "how" "required" "labels" "…") */}}
{{- define "raftmq.antiAffinity" -}}
{{- if ne .how "none" }}
affinity:
  podAntiAffinity:
    {{- if eq .how "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- .labels | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- .labels | nindent 14 }}
    {{- end }}
{{- end }}
{{- end -}}

{{/* What this process signs its own requests with. */}}
{{- define "raftmq.innerEnvironment" -}}
{{- if include "raftmq.withAccounts" . }}
- name: RAFTMQ_INNER_CLIENT_AUTHENTICATION_CREDENTIALS
  valueFrom: {secretKeyRef: {name: {{ include "raftmq.accountsName" . }}, key: inner.json}}
{{- end }}
{{- end -}}

{{/* What mqadmin in a pod needs. */}}
{{- define "raftmq.toolsEnvironment" -}}
- {name: NAMESRV_ADDR, value: {{ include "raftmq.nameServers" . | quote }}}
{{- if include "raftmq.withTls" . }}
- {name: RAFTMQ_TLS_CONFIG_FILE, value: /etc/raftmq/config/tls.properties}
{{- end }}
{{- if include "raftmq.withAccounts" . }}
- name: RAFTMQ_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ include "raftmq.accountsName" . }}, key: accessKey}}
- name: RAFTMQ_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ include "raftmq.accountsName" . }}, key: secretKey}}
{{- end }}
{{- end -}}

{{- define "raftmq.mounts" -}}
- {name: config, mountPath: /etc/raftmq/config, readOnly: true}
- {name: secrets, mountPath: /etc/raftmq/secrets, readOnly: true}
{{- if include "raftmq.withAccounts" . }}
- {name: accounts, mountPath: /etc/raftmq/accounts, readOnly: true}
{{- end }}
{{- if include "raftmq.withTls" . }}
- {name: tls, mountPath: /etc/raftmq/tls, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* The volumes of these mounts: (dict "root" $ "config" "NAME" "keys" (list "tokens.json" …)) */}}
{{- define "raftmq.volumes" -}}
- name: config
  configMap: {name: {{ .config }}}
- name: secrets
  secret:
    secretName: {{ include "raftmq.secretName" .root }}
    defaultMode: 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- if include "raftmq.withAccounts" .root }}
- name: accounts
  secret:
    secretName: {{ include "raftmq.accountsName" .root }}
    defaultMode: 0440
    items:
      - {key: plain_acl.yml, path: plain_acl.yml}
{{- end }}
{{- if include "raftmq.withTls" .root }}
- name: tls
  secret: {secretName: {{ include "raftmq.tlsName" .root }}, defaultMode: 0440}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end -}}

{{/* Probes of an HTTP API: (dict "root" $ "startSeconds" 86400). A kubelet does not check certificates. */}}
{{- define "raftmq.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (eq (include "raftmq.withTls" .root) "true") -}}
startupProbe:
  httpGet: {path: /health/live, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add (int .startSeconds) 4) 5 }}
livenessProbe: # only a process that answers nothing for a minute and a half is killed
  httpGet: {path: /health/live, port: http, scheme: {{ $scheme }}}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}
