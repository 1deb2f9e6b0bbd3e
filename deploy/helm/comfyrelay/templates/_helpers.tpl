{{/* Names: <release>-server, <release>-scaler, and <release>-<stage>-<slug> for the workers of a fleet. */}}
{{- define "comfyrelay.server" -}}
{{ .Release.Name }}-server
{{- end }}

{{- define "comfyrelay.scaler" -}}
{{ .Release.Name }}-scaler
{{- end }}

{{/* Takes a dict of root and slug. KEDA creates an autoscaler named keda-hpa-<name>, and names have at most 63
characters. */}}
{{- define "comfyrelay.workers" -}}
{{- $name := printf "%s-%s-%s" .root.Release.Name .root.Values.stage .slug -}}
{{- if gt (len $name) 54 -}}
{{- fail (printf "%s has %d characters, the maximum is 54: use a shorter slug or release name." $name (len $name)) -}}
{{- end -}}
{{ $name }}
{{- end }}

{{- define "comfyrelay.serverUrl" -}}
http://{{ include "comfyrelay.server" . }}.{{ .Release.Namespace }}:8420
{{- end }}

{{/* Labels take a dict of root and component. */}}
{{- define "comfyrelay.selectorLabels" -}}
app.kubernetes.io/name: comfyrelay
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "comfyrelay.labels" -}}
{{ include "comfyrelay.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Takes a dict of root and image. */}}
{{- define "comfyrelay.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "comfyrelay.databaseEnv" -}}
- name: COMFYRELAY_DATA_DIR
  value: /var/lib/comfyrelay
- name: COMFYRELAY_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.secrets.server }}
      key: database-url
- name: COMFYRELAY_SHARDS
  valueFrom:
    secretKeyRef:
      name: {{ .Values.secrets.server }}
      key: shards
{{- end }}

{{/* 10001 is the user of the images. */}}
{{- define "comfyrelay.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "comfyrelay.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{/* The only folders that a container can write to. */}}
{{- define "comfyrelay.volumeMounts" -}}
- name: data
  mountPath: /var/lib/comfyrelay
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "comfyrelay.volumes" -}}
- name: data
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- end }}
