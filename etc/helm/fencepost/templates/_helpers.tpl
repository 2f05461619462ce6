{{- /* The name of all objects: the release's, which says that it is Fencepost. */ -}}
{{- define "fencepost.name" -}}
{{- if contains "fencepost" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-fencepost" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "fencepost.labels" -}}
app.kubernetes.io/name: fencepost
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The configuration file. */ -}}
{{- define "fencepost.config" -}}
{{- $admin := get .Values.config "admin" | default dict }}
{{- if hasKey .Values.config "listen" }}
{{- fail "config.listen: the chart sets it. Set service.port to change the port that workers connect to." }}
{{- end }}
{{- if or (not (kindIs "map" $admin)) (hasKey $admin "address") }}
{{- fail "config.admin: the chart sets its address. Set only other settings of admin, such as admin.tls." }}
{{- end }}
{{- if eq (dig "admin" "open_reads" true .Values.config | toString) "false" }}
{{- fail "config.admin.open_reads: false would make the probes of the kubelet fail, which has no token. Use networkPolicy to restrict who reaches the admin address." }}
{{- end }}
{{- if or (dig "control" "password" "" .Values.config) (dig "election" "consul" "token" "" .Values.config) (dig "election" "etcd" "password" "" .Values.config) (dig "election" "redis" "password" "" .Values.config) (dig "election" "zookeeper" "password" "" .Values.config) (dig "admin" "token" "" .Values.config) }}
{{- fail "config has a password or a token, which everybody could read in a ConfigMap. Put it in a Secret, and name that in secrets." }}
{{- end }}
{{- if dig "election" "kubernetes" "kubeconfig" "" .Values.config }}
{{- fail "config.election.kubernetes.kubeconfig: the pods use their service account, which the chart makes. Remove it." }}
{{- end }}
{{- $own := dict "listen" "0.0.0.0:6432" "admin" (dict "address" "0.0.0.0:6433") }}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml }}
{{- end }}
