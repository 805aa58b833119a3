#!/bin/sh
# Make certificates for a cluster with openssl: deploy/certificates.sh DIRECTORY HOST...
#
#   DIRECTORY/ca.crt ca.key            signs the certificates of servers and clients; keep the key
#                                      elsewhere
#   DIRECTORY/raft-ca.crt raft-ca.key  signs only replicas' certificates: any holder of one may speak
#                                      as a replica
#   DIRECTORY/HOST/                    server.{crt,key} and raft.{crt,key} of that host, both CAs'
#                                      certificates, and tls.properties for the tools there
#   DIRECTORY/client/                  client.{crt,key}, ca.crt and tls.properties for clients
#
# Existing CAs are used again and certificates are made anew, so running it again renews them, with both
# CAs' keys and as a user who may write there. HOST is the name or address that others dial: in
# dLegerPeers, namesrvAddr and brokerIP1. Servers' certificates are also for localhost, 127.0.0.1 and
# $RAFTMQ_ADVERTISED_HOST. They are valid for $DAYS (365).
set -eu
umask 077
[ $# -ge 2 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
directory=$1
shift
days=${DAYS:-365}
curve="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
mkdir -p "$directory"

fail() { # WHY
    echo "certificates.sh: $1" >&2
    exit 1
}

[ -r "$directory" ] && [ -w "$directory" ] && [ -x "$directory" ] \
    || fail "$directory belongs to another user: run this with sudo, and give it back afterwards"
new=$(mktemp -d "$directory/.new.XXXXXX") # what is not finished; it is moved where it belongs
trap 'rm -r "$new"' EXIT

quietly() { # COMMAND... → what it says is shown only if it fails
    said=$("$@" 2>&1) || fail "$said"
}

authority() { # NAME
    [ -e "$directory/$1.key" ] && return
    [ ! -e "$directory/$1.crt" ] || fail "$directory/$1.crt is there and its key $1.key is not: \
bring the key back, or remove the certificate too if there shall be a new CA"
    # shellcheck disable=SC2086
    quietly openssl req -x509 $curve -days 3650 -subj "/O=raftmq/CN=$1" -keyout "$new/key" \
        -out "$new/crt" -addext basicConstraints=critical,CA:TRUE \
        -addext keyUsage=critical,keyCertSign,cRLSign
    mv "$new/crt" "$directory/$1.crt"
    mv "$new/key" "$directory/$1.key"
}

name() { # HOST → how a certificate names it
    case $1 in
    *[!0-9.]*) case $1 in *:*) echo "IP:$1" ;; *) echo "DNS:$1" ;; esac ;;
    *) echo "IP:$1" ;;
    esac
}

certificate() { # CA PATH COMMON-NAME USAGE NAMES
    # A common name has at most 64 characters; nobody looks at it where there are NAMES.
    # shellcheck disable=SC2086
    quietly openssl req -new $curve -subj "/O=raftmq/CN=$(printf %.64s "$3")" -keyout "$new/key" \
        -out "$new/csr"
    {
        echo "basicConstraints=critical,CA:FALSE"
        echo "extendedKeyUsage=$4"
        [ -z "$5" ] || echo "subjectAltName=$5"
    } > "$new/ext"
    quietly openssl x509 -req -in "$new/csr" -CA "$directory/$1.crt" -CAkey "$directory/$1.key" \
        -CAcreateserial -days "$days" -extfile "$new/ext" -out "$new/crt"
    mv "$new/key" "$2.key"
    mv "$new/crt" "$2.crt"
}

authority ca
authority raft-ca
more="DNS:localhost,IP:127.0.0.1"
[ -z "${RAFTMQ_ADVERTISED_HOST:-}" ] || more="$more,$(name "$RAFTMQ_ADVERTISED_HOST")"
for host in "$@"; do
    own="$directory/$host"
    mkdir -p "$own"
    certificate ca "$own/server" "$host" serverAuth,clientAuth "$(name "$host"),$more"
    certificate raft-ca "$own/raft" "$host" serverAuth,clientAuth "$(name "$host")"
    cp "$directory/ca.crt" "$directory/raft-ca.crt" "$own/"
    printf 'tls.client.trustCertPath=ca.crt\ntls.client.certPath=server.crt\ntls.client.keyPath=server.key\n' \
        > "$own/tls.properties"
done
mkdir -p "$directory/client"
certificate ca "$directory/client/client" client clientAuth ""
cp "$directory/ca.crt" "$directory/client/"
printf 'tls.client.trustCertPath=ca.crt\ntls.client.certPath=client.crt\ntls.client.keyPath=client.key\n' \
    > "$directory/client/tls.properties"
