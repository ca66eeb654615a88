{{- define "kvasir-relay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* A release named like the chart, or like its beginning, doesn't say it twice. */}}
{{- define "kvasir-relay.fullname" -}}
{{- $name := include "kvasir-relay.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else if hasPrefix (printf "%s-" .Release.Name) $name }}
{{- $name }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kvasir-relay.selector" -}}
app.kubernetes.io/name: kvasir-relay
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvasir-relay.labels" -}}
{{ include "kvasir-relay.selector" . }}
app.kubernetes.io/component: relay
app.kubernetes.io/part-of: kvasir
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "kvasir-relay-%s" .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kvasir-relay.image" -}}
{{- $global := .Values.global | default dict }}
{{- $tag := $global.imageTag | default .Chart.AppVersion }}
{{- with $global.imageRegistry }}{{ . }}/{{ end }}
{{- with .Values.image }}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (.tag | default $tag) }}{{ end }}
{{- end }}
{{- end }}

{{- define "kvasir-relay.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "kvasir-relay.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "kvasir-relay.scheme" -}}
{{- if .Values.tls.existingSecret }}https{{ else }}http{{ end }}
{{- end }}

{{/* Where the market is called inside the cluster: any relay answers. */}}
{{- define "kvasir-relay.url" -}}
{{- printf "%s://%s.%s.svc:%d" (include "kvasir-relay.scheme" .) (include "kvasir-relay.fullname" .) .Release.Namespace (int .Values.service.port) }}
{{- end }}

{{/* Name of relay number .index: the first has no number while it is alone. */}}
{{- define "kvasir-relay.member" -}}
{{- $name := include "kvasir-relay.fullname" .root }}
{{- if gt (int .root.Values.replicas) 1 }}{{ printf "%s-%d" $name .index }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{/* Address of relay number .index as stages dial it. */}}
{{- define "kvasir-relay.publicUrl" -}}
{{- $values := .root.Values }}
{{- if $values.publicUrls }}
{{- index $values.publicUrls .index }}
{{- else }}
{{- printf "%s://%s.%s.svc:%d" (include "kvasir-relay.scheme" .root) (include "kvasir-relay.member" .) .root.Release.Namespace (int $values.service.port) }}
{{- end }}
{{- end }}

{{/* What the schema can't say. */}}
{{- define "kvasir-relay.check" -}}
{{- $replicas := int .Values.replicas }}
{{- if and (gt $replicas 1) (not .Values.database.existingSecret) }}
{{- fail "replicas: several relays share a PostgreSQL: set database.existingSecret" }}
{{- end }}
{{- if and .Values.publicUrls (ne (len .Values.publicUrls) $replicas) }}
{{- fail (printf "publicUrls: there are %d for %d replicas: each relay has its own" (len .Values.publicUrls) $replicas) }}
{{- end }}
{{- range $kind := list "ingress" "httpRoute" }}
{{- $route := index $.Values $kind }}
{{- if and $route.enabled (ne (len $route.hosts) $replicas) }}
{{- fail (printf "%s.hosts: there are %d for %d replicas: each relay has its own" $kind (len $route.hosts) $replicas) }}
{{- end }}
{{- if and $route.enabled (not $.Values.publicUrls) }}
{{- fail (printf "publicUrls: who comes by %s.hosts is sent to them: name their addresses, such as https://%s" $kind (first $route.hosts)) }}
{{- end }}
{{- end }}
{{- if and .Values.database.existingSecret .Values.persistence.enabled }}
{{- fail "persistence is of SQLite: leave it out with database.existingSecret" }}
{{- end }}
{{- end }}
