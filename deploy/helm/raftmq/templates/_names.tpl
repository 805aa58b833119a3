{{/* Names, labels and addresses. */}}

{{- define "raftmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "raftmq.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "raftmq.labels" -}}
{{ include "raftmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "raftmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "raftmq.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "raftmq.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* The DNS domain of the pods of the brokers, or of the name servers: (dict "root" $ "of" "broker") */}}
{{- define "raftmq.domain" -}}
{{ include "raftmq.fullname" .root }}-{{ .of }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/* namesrvAddr: every name server by its own name, since a broker registers at each. */}}
{{- define "raftmq.nameServers" -}}
{{- $root := . -}}
{{- $domain := include "raftmq.domain" (dict "root" $root "of" "namesrv-pods") -}}
{{- range $i := until (int .Values.nameServer.replicas) -}}
{{- if $i }};{{ end -}}
{{ include "raftmq.fullname" $root }}-namesrv-{{ $i }}.{{ $domain }}:9876
{{- end -}}
{{- end -}}

{{/* dLegerPeers of a group: (dict "root" $ "group" 0) */}}
{{- define "raftmq.peers" -}}
{{- $domain := include "raftmq.domain" (dict "root" .root "of" "broker") -}}
{{- $name := printf "%s-broker-%d" (include "raftmq.fullname" .root) (int .group) -}}
{{- range $i := until (int .root.Values.broker.replicas) -}}
{{- if $i }};{{ end -}}
n{{ $i }}-{{ $name }}-{{ $i }}.{{ $domain }}:40911
{{- end -}}
{{- end -}}

{{/* The running groups that these values no longer have, separated by spaces; none for `helm template`. */}}
{{- define "raftmq.leavingGroups" -}}
{{- $prefix := printf "%s-broker-" (include "raftmq.fullname" .) -}}
{{- $groups := int .Values.broker.groups -}}
{{- $leaving := list -}}
{{- range $one := (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items -}}
{{- $number := trimPrefix $prefix $one.metadata.name -}}
{{- if and (hasPrefix $prefix $one.metadata.name) (regexMatch "^[0-9]+$" $number) (ge (atoi $number) $groups) -}}
{{- $leaving = append $leaving (printf "broker-%s" $number) -}}
{{- end -}}
{{- end -}}
{{- join " " $leaving -}}
{{- end -}}

{{- define "raftmq.secretName" -}}
{{ .Values.secrets.existing | default (printf "%s-secrets" (include "raftmq.fullname" .)) }}
{{- end -}}

{{- define "raftmq.accountsName" -}}
{{- if eq .Values.accounts.source "secret" -}}
{{ required "accounts.source is secret: name it, accounts.secret" .Values.accounts.secret }}
{{- else -}}
{{ include "raftmq.fullname" . }}-accounts
{{- end -}}
{{- end -}}

{{- define "raftmq.tlsName" -}}
{{- if eq .Values.tls.source "secret" -}}
{{ required "tls.source is secret: name it, tls.secret" .Values.tls.secret }}
{{- else -}}
{{ include "raftmq.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "raftmq.raftTlsName" -}}
{{- if eq .Values.tls.source "secret" -}}
{{ required "tls.source is secret: the links between replicas need a Secret of a CA of their own, tls.raftSecret" .Values.tls.raftSecret }}
{{- else -}}
{{ include "raftmq.fullname" . }}-raft-tls
{{- end -}}
{{- end -}}

{{- define "raftmq.withTls" -}}
{{- if ne .Values.tls.source "plaintext" }}true{{ end -}}
{{- end -}}

{{- define "raftmq.withAccounts" -}}
{{- if ne .Values.accounts.source "everybody" }}true{{ end -}}
{{- end -}}

{{/* Whom the certificate that clients see is for, as a list in JSON. */}}
{{- define "raftmq.certificateNames" -}}
{{- $name := include "raftmq.fullname" . -}}
{{- $names := list
  (printf "*.%s" (include "raftmq.domain" (dict "root" . "of" "broker")))
  (include "raftmq.domain" (dict "root" . "of" "broker"))
  (printf "*.%s" (include "raftmq.domain" (dict "root" . "of" "namesrv-pods")))
-}}
{{- range $of := list "namesrv" "proxy" -}}
{{- $service := printf "%s-%s" $name $of -}}
{{- $names = concat $names (list
  $service
  (printf "%s.%s" $service $.Release.Namespace)
  (printf "%s.%s.svc" $service $.Release.Namespace)
  (printf "%s.%s.svc.%s" $service $.Release.Namespace $.Values.clusterDomain)
) -}}
{{- end -}}
{{- concat $names (list "localhost") .Values.tls.extraNames | toJson -}}
{{- end -}}
