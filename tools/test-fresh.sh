#!/usr/bin/env bash
# Run `make venv`, `make demo` and a cluster on fresh Debian machines: roots that debootstrap builds, with only Python, make and
# git in them, as a user and as root, without and with a Java, in a path with a space. Needs root, debootstrap and the package registries.
#   tools/test-fresh.sh [RELEASE...]     bookworm (Python 3.11) and trixie (3.13) by default; FRESH_DIR=build/fresh
set -euo pipefail
cd "$(dirname "$0")/.."
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
# In namespaces of its own: at the end, or at a failure, no mount and no process is left.
[ "${FRESH_NAMESPACE:-}" ] || exec env FRESH_NAMESPACE=1 unshare --mount --propagation private --pid --fork --kill-child -- "$0" "${releases[@]}"
trap 'exit 130' INT TERM # or the first process of a namespace ignores them
dir=${FRESH_DIR:-$PWD/build/fresh}
keep=$(env | grep -E '^(PIP_|SSL_CERT|REQUESTS_CA|http_proxy|https_proxy|no_proxy)' || true)

inside() { # inside USER COMMAND: run a shell command in the machine, in the clone
    chroot "$root" /usr/bin/env -i HOME="/home/$1" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 $keep \
        setpriv --reuid "$1" --regid "$1" --init-groups sh -c "cd '/srv/$1/raft mq' && $2"
}

step() { # step NAME COMMAND...: run it and print how long it took
    local name=$1 start=$SECONDS
    shift
    "$@" >"$dir/$release.log" 2>&1 || { echo "$release: $name FAILED"; tail -n 20 "$dir/$release.log"; exit 1; }
    echo "$release: $name: $((SECONDS - start)) s"
}

refused_without_java() {
    ! inside guest "make demo" && grep -q "apt-get install default-jre-headless" "$dir/$release.log" &&
        [ -n "$(chroot "$root" apt-cache show default-jre-headless)" ]
}

cluster="PATH=\$PWD/.venv/bin:\$PATH; mqcluster up --dir /tmp/c-\$(id -u) --set mappedFileSizeCommitLog=64MiB && mqcluster down --dir /tmp/c-\$(id -u)"
for release in "${releases[@]}"; do
    root=$dir/$release
    rm -rf "$root"
    mkdir -p "$root"
    step "debootstrap" debootstrap --variant=minbase --include=python3,python3-venv,make,git,ca-certificates "$release" "$root"
    cp -a /etc/ssl/certs/. "$root/etc/ssl/certs/"
    cp -aL /usr/local/share/ca-certificates "$root/usr/local/share/" 2>/dev/null || true
    cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    for file in /etc/pip.conf /etc/resolv.conf /etc/hosts; do [ ! -e "$file" ] || cp -L "$file" "$root$file"; done
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    chroot "$root" useradd --create-home guest
    for user in guest root; do
        git clone --quiet --no-hardlinks . "$root/srv/$user/raft mq"
        chroot "$root" chown -R "$user" "/srv/$user"
    done
    step "make venv as a user" inside guest "make venv"
    step "a cluster as a user" inside guest "$cluster"
    step "make demo without a Java is refused, with a package that exists" refused_without_java
    step "make demo as root, which installs a Java" inside root "make demo"
    step "make demo as a user" inside guest "make demo"
done
