# Certificates of the cluster, and a kubeconfig for each of its users. Sourced after lib.sh.
# shellcheck shell=bash

PKI=$STATE/pki

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
authority() {
  [ ! -s "$PKI/ca.crt" ] || return 0
  openssl req -x509 "${new_key[@]}" -days 365 -subj /CN=kvasir-cluster -keyout "$PKI/ca.key" -out "$PKI/ca.crt" 2>/dev/null
  # signs service accounts' tokens
  openssl genrsa -out "$PKI/tokens.key" 2048 2>/dev/null
  openssl rsa -in "$PKI/tokens.key" -pubout -out "$PKI/tokens.pub" 2>/dev/null
}
certificate() { # NAME SUBJECT [ALTERNATIVE-NAMES]
  local file=$PKI/$1
  [ ! -s "$file.crt" ] || return 0
  openssl req -new "${new_key[@]}" -subj "$2" -keyout "$file.key" -out "$file.csr" 2>/dev/null
  {
    echo extendedKeyUsage=serverAuth,clientAuth
    [ -z "${3:-}" ] || echo "subjectAltName=$3"
  } >"$file.ext"
  openssl x509 -req -in "$file.csr" -extfile "$file.ext" -days 365 -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial \
    -out "$file.crt" 2>/dev/null
  rm "$file.csr" "$file.ext"
}
user() { # NAME SUBJECT: a certificate, and $STATE/NAME.kubeconfig
  certificate "$1" "$2"
  cat >"$STATE/$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: cluster
contexts: [{name: cluster, context: {cluster: cluster, user: $1}}]
clusters: [{name: cluster, cluster: {server: "$API", certificate-authority-data: $(base64 --wrap=0 "$PKI/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 --wrap=0 "$PKI/$1.crt"), client-key-data: $(base64 --wrap=0 "$PKI/$1.key")}}]
YAML
}
