#!/usr/bin/env bash
# Checks what tests expect of a cluster that is up. Ends with a line 'N passed, N failed'.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
passed=0 failed=0
promise() { # WHAT COMMAND...
  local what=$1
  shift
  if "$@" &>"$STATE/log/smoke.log"; then
    passed=$((passed + 1))
    say "ok: $what"
  else
    failed=$((failed + 1))
    say "FAILED: $what"
    tail --lines=10 "$STATE/log/smoke.log"
  fi
}
within() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.3
  done
}
k() { admin --namespace smoke "$@"; }
says() { grep --quiet "$1" < <("${@:2}"); }
not() { ! "$@"; }

admin delete namespace smoke --ignore-not-found >/dev/null
admin create namespace smoke >/dev/null
admin label namespace smoke pod-security.kubernetes.io/enforce=restricted >/dev/null
restricted='{runAsNonRoot: true, runAsUser: 65532, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}'
k apply --filename - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{name: shared, emptyDir: {}}, {name: given, configMap: {name: web}}]
      initContainers:
        - name: fetch
          image: $BUSYBOX
          args: [-c, cp /given/index.html /shared]
          securityContext: $restricted
          volumeMounts: [{name: shared, mountPath: /shared}, {name: given, mountPath: /given}]
      containers:
        - name: web
          image: $BUSYBOX
          args: [-c, echo serving; exec httpd -f -p 8080 -h /shared]
          securityContext: $restricted
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /index.html, port: http}, periodSeconds: 1}
          resources: {requests: {cpu: 10m, memory: 16Mi}}
          volumeMounts: [{name: shared, mountPath: /shared}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {index.html: "hello\n"}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http, nodePort: 30080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: $BUSYBOX, args: [-c, "trap exit TERM; while :; do sleep 1; done"], securityContext: $restricted}]
---
apiVersion: v1
kind: Pod
metadata: {name: glutton}
spec:
  restartPolicy: Never
  containers: [{name: glutton, image: $BUSYBOX, args: [-c, tail /dev/zero], resources: {limits: {memory: 32Mi}}, securityContext: $restricted}]
---
apiVersion: v1
kind: Pod
metadata: {name: gpu}
spec:
  restartPolicy: Never
  nodeSelector: {kvasir.dev/pool: gpu}
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  containers: [{name: gpu, image: $BUSYBOX, args: [-c, "true"], resources: {limits: {nvidia.com/gpu: 1}}, securityContext: $restricted}]
YAML

promise 'an init container fills a volume, and a probe finds it there' k rollout status deployment/web --timeout=90s
promise 'a pod runs' k wait --for=condition=Ready pod/client --timeout=60s
promise 'its log is read' says serving k logs deployment/web
promise 'a command runs in it' k exec client -- true
# Debian's static busybox dies in its wget
ask="printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 5"
in_client() { k exec client -- sh -c "$1"; }
promise 'a Service has a name' within 20 in_client 'nslookup web.smoke.svc.cluster.local'
promise 'a Service is reached by its name' within 20 in_client "$ask web 80 | grep hello"
for ip in $(k get pods --selector app=web --output 'jsonpath={.items[*].status.podIP}'); do
  promise "pod $ip is reached from a pod" in_client "$ask $ip 8080 | grep hello"
  promise "pod $ip is reached from this machine" curl --fail --silent --max-time 5 "http://$ip:8080/"
done
index=0
for node in $NODES; do
  index=$((index + 1))
  promise "a node port is open on $node" curl --fail --silent --max-time 5 "http://$NET.$((10 + index)):30080/"
done
promise 'a pod reaches the API server with its token' in_client \
  'test -s /var/run/secrets/kubernetes.io/serviceaccount/token && nc -w 3 kubernetes.default 443 </dev/null'
promise 'a pod reaches this machine' in_client "nc -w 3 $NET.1 6443 </dev/null"
promise 'a memory limit kills' within 60 says OOMKilled \
  k get pod glutton --output 'jsonpath={.status.containerStatuses[0].state.terminated.reason}'
promise 'a pod that asks for a GPU runs in the GPU pool' k wait --for=jsonpath='{.status.phase}'=Succeeded pod/gpu --timeout=60s
promise 'nothing else does' not says gpu- k get pods --selector app=web --output wide
promise 'a pod that is not restricted is refused' not k run --image="$BUSYBOX" root
promise 'writes are in the audit log' says '"verb":"create".*"resource":"configmaps".*"namespace":"smoke"' cat "$STATE/log/audit.log"
promise 'reads are not' not says '"verb":"list"' cat "$STATE/log/audit.log"
promise 'a namespace goes with its pods' admin delete namespace smoke --timeout=90s
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
