{{- define "kvasir-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* A release named like the chart, or like its beginning, doesn't say it twice. */}}
{{- define "kvasir-operator.fullname" -}}
{{- $name := include "kvasir-operator.name" . }}
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

{{/* Objects of the cluster have names that differ between namespaces. */}}
{{- define "kvasir-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "kvasir-operator.fullname" .) }}
{{- end }}

{{- define "kvasir-operator.selector" -}}
app.kubernetes.io/name: kvasir-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvasir-operator.labels" -}}
{{ include "kvasir-operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: kvasir
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "kvasir-operator-%s" .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Reference of .image, with the tag of all images, or the version of .root, for want of its own. */}}
{{- define "kvasir-operator.image" -}}
{{- $global := .root.Values.global | default dict }}
{{- $tag := $global.imageTag | default .root.Chart.AppVersion }}
{{- with $global.imageRegistry }}{{ . }}/{{ end }}
{{- with .image }}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (.tag | default $tag) }}{{ end }}
{{- end }}
{{- end }}

{{- define "kvasir-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "kvasir-operator.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{/* The relay of Rings that name none; empty when there is none. */}}
{{- define "kvasir-operator.relayUrl" -}}
{{- if .Values.relayUrl }}
{{- .Values.relayUrl }}
{{- else if .Values.relay.enabled }}
{{- include "kvasir-relay.url" .Subcharts.relay }}
{{- end }}
{{- end }}

{{/* What the operator does in the namespaces of Rings. */}}
{{- define "kvasir-operator.rules" -}}
# Rings: read them, hold their deletion up until claims are released, write their status
- {apiGroups: [kvasir.dev], resources: [rings], verbs: [get, list, watch, patch]}
- {apiGroups: [kvasir.dev], resources: [rings/status], verbs: [get, patch]}
# owner references that block an owner's deletion take this where the API server checks them
- {apiGroups: [kvasir.dev], resources: [rings/finalizers], verbs: [update]}
# a stage's keys, its part of the plan, the Service, the cache of a window; server-side apply is create and patch
- apiGroups: [""]
  resources: [secrets, configmaps, services, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- {apiGroups: [apps], resources: [deployments], verbs: [get, list, watch, create, patch, delete]}
# reads the prefix of a model on a volume
- {apiGroups: [batch], resources: [jobs], verbs: [get, create, delete]}
# why a stage doesn't run: the scheduler's and the containers' own words
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
# what such a Job found out
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
{{- end }}
