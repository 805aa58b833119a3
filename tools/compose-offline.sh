#!/bin/bash
# `docker compose up` of this project where there is no engine and no image registry: for CI, and to
# look at the compose file on any Debian machine. Needs root, apt and pip.
#
#   tools/compose-offline.sh up [SERVICE...]   from nothing to running containers; what took how long is in STATE/times
#   tools/compose-offline.sh tools             the image of the profiles chaos and audit, once the engine is up
#   tools/compose-offline.sh compose ARG...    docker compose in this project (ps, logs, kill, pause ...)
#   tools/compose-offline.sh docker ARG...     the docker client against that engine
#   tools/compose-offline.sh in COMMAND...     run COMMAND inside the engine's namespaces (published ports are there)
#   tools/compose-offline.sh forward PORT...   also serve 127.0.0.1:PORT on the machine's own loopback
#   tools/compose-offline.sh down              compose down -v, stop the engine, leave nothing running
#
# The engine is Debian's, in a network, mount, pid and cgroup namespace of its own with no route out: the machine's
# firewall and sysctls stay as they were, and all its processes end with it. The base image is a stand-in for
# that of deploy/Dockerfile out of this machine's own files, with its Python, the wheels that the project needs
# (pyproject.toml, as requirements.txt pins them), and for the tools its Java and Spark; the Dockerfiles run unchanged.
#
# Environment:
#   STATE       working folder (default: ${TMPDIR:-/tmp}/raftmq-compose), kept between runs as a cache
#   PYTHON      the interpreter that goes into the image, and whose pip gathers the wheels (default: python3);
#               for the tools, one that has the packages of the project's extras audit and chaos (.venv/bin/python)
set -euo pipefail
STATE=${STATE:-${TMPDIR:-/tmp}/raftmq-compose}; mkdir -p "$STATE"/{run,cfg,ctx/wheels}
PYTHON=${PYTHON:-python3}
PROJECT=$(cd "$(dirname "$0")/.." && pwd); IMAGE=raftmq:local; TOOLS=raftmq-tools:local; BASE=$(sed -n "s/^FROM //p" "$PROJECT/deploy/Dockerfile")
# What the harness in a container is given is this engine, not the machine's.
export RAFTMQ_ENGINE_SOCKET=$STATE/run/docker.sock RAFTMQ_ENGINE_VOLUMES=$STATE/data/volumes
PROFILES=classic,chaos,audit,monitoring
export COMPOSE_PROJECT_NAME=raftmq DOCKER_HOST=unix://$STATE/run/docker.sock DOCKER_CONFIG=$STATE/cfg

T0=$(date +%s%N); LAST=$T0
step() { local n; n=$(date +%s%N); printf '%7.1f s  %s\n' "$(( (n-LAST)/1000000 ))e-3" "$1" | tee -a "$STATE/times"; LAST=$n; }
die() { echo "compose-offline: $*" >&2; exit 1; }
# A pid file may outlive its process, and the number come back as somebody else's: a pid counts only with our folder in
# its command line.
mine() { [ -n "${1:-}" ] && { tr "\0" " " <"/proc/$1/cmdline"; } 2>/dev/null | grep -qF -- "$STATE"; }
inner() { cat "$STATE/run/inner.pid" 2>/dev/null; }
alive() { mine "$(inner)"; }
ns() { alive || die "no engine running"; nsenter -t "$(inner)" -n -p -m -C --wd="$PWD" -- "$@"; }
compose() {
  cd "$PROJECT"
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

empty() { COMPOSE_PROFILES=$PROFILES compose down -v --remove-orphans; }

packages() {
  local want="docker.io docker-compose iptables tini busybox-static"  # the last one is the image's
  if ! dpkg -s $want >/dev/null 2>&1; then
    apt-get update -qq >"$STATE/apt.log" 2>&1 || { tail -5 "$STATE/apt.log"; die "apt-get update failed"; }
    # RUNLEVEL=1: the packages must not start a service of their own
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $want >>"$STATE/apt.log" 2>&1 \
      || { tail -5 "$STATE/apt.log"; die "apt-get install failed"; }
  fi
  step "packages: $want"
}

wheels() { # the images have no way out, so what the project needs is carried in; in the background of the packages
  local need stamp
  stamp=$(cat "$PROJECT/pyproject.toml" "$PROJECT/requirements.txt" "$PROJECT/tools/compose-offline.sh" | sha256sum)
  [ "$(cat "$STATE/wheels.stamp" 2>/dev/null)" != "$stamp" ] || return 0
  mapfile -t need < <("$PYTHON" - "$PROJECT/pyproject.toml" <<'P'
import sys, tomllib
t = tomllib.load(open(sys.argv[1], "rb"))
project = t["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *extras["server"], *extras["proxy"], *t["build-system"]["requires"]]
print("\n".join(one for one in dict.fromkeys(wanted) if not one.startswith(project["name"])))
P
)
  "$PYTHON" -m pip wheel -q --disable-pip-version-check --prefer-binary -c "$PROJECT/requirements.txt" \
    -w "$STATE/ctx/wheels" pip wheel "${need[@]}" >"$STATE/pip.log" 2>&1
  echo "$stamp" >"$STATE/wheels.stamp"
}

base_tar() { # what every Debian system has, and this interpreter, out of this machine's own files: seconds, not a minute
  [ ! -f "$STATE/base.tar" ] || { step "base system: kept"; return 0; }
  "$PYTHON" - "$STATE/base.tar" >"$STATE/base.log" 2>&1 <<'P' || { tail -5 "$STATE/base.log"; die "no base system"; }
import os, re, subprocess, sys, sysconfig, tarfile
from pathlib import Path
def run(*words): return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
packages = [w.split() for w in run("dpkg-query", "-W", "-f", "${binary:Package} ${Essential} ${Priority}\n")]
# What wheels may count on (manylinux), and what the Dockerfile installs where it reaches a registry.
runtime = {"libc6", "libgcc-s1", "libstdc++6", "busybox-static"}
wanted = [w[0] for w in packages if w[1] == "yes" or w[-1] == "required" or w[0].split(":")[0] in runtime]
merged = Path("/bin").is_symlink()
def real(path): return re.sub(r"^/(s?bin|lib\w*)/", r"/usr/\1/", path) if merged else path
def moved(path): return re.sub(f"^{re.escape(sys.base_prefix)}/", "/usr/local/", path) if sys.base_prefix != "/usr" else path
skip = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug|perl)/|/usr/lib/[^/]+/perl|/usr/share/perl|/var/lib/dpkg/")
files = {real(p) for p in run("dpkg", "-L", *wanted) if p.startswith("/") and not skip.search(p + "/")}
version = f"python{sys.version_info.major}.{sys.version_info.minor}"
library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
left_out = {"site-packages", "dist-packages", "test", "idlelib", "tkinter", "lib2to3", "ensurepip", "__pycache__"}
for folder, folders, names in os.walk(library):
    folders[:] = [f for f in folders if f not in left_out and not f.startswith("config-")]
    files.update(os.path.join(folder, name) for name in names)
program = str(Path(sys.base_prefix, "bin", version)); files.add(program)
elf = [f for f in files if os.path.isfile(f) and not os.path.islink(f) and Path(f).open("rb").read(4) == b"\x7fELF"]
for line in subprocess.run(["ldd", *elf], capture_output=True, text=True).stdout.splitlines():
    found = re.search(r"(/\S+) \(0x", line)
    if found: files.update({real(found[1]), os.path.realpath(found[1])})
with tarfile.open(sys.argv[1] + ".part", "w") as tar:
    for path in sorted(files | {"/bin", "/sbin", "/lib", "/lib64"} - {"/.", "/"}):
        if os.path.lexists(path): tar.add(path, moved(path).lstrip("/"), recursive=False)
    for name in ("passwd", "group"): tar.add(f"/usr/share/base-passwd/{name}.master", f"etc/{name}")
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"usr/local/bin/{name}"); link.type, link.linkname = tarfile.SYMTYPE, moved(program); tar.addfile(link)
os.rename(sys.argv[1] + ".part", sys.argv[1])
P
  step "base system: $(( $(stat -c %s "$STATE/base.tar")/1000000 )) MB tar"
}

engine() {
  alive && { step "engine already up (pid $(inner))"; return; }
  cat >"$STATE/run/inside.sh" <<'I'
set -e
mount --make-rprivate /; umount -l /sys/fs/cgroup; mount -t tmpfs -o mode=755 cgroup_root /sys/fs/cgroup
for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir /sys/fs/cgroup/$c; mount -t cgroup -o $c cgroup /sys/fs/cgroup/$c || rmdir /sys/fs/cgroup/$c
done
ip link set lo up
exec tini -g -- dockerd -H "unix://$1/run/docker.sock" --data-root "$1/data" --exec-root "$1/run/exec" --pidfile "$1/run/dockerd.pid" \
  --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /compose-offline --default-address-pool base=198.18.0.0/16,size=24 --bip 198.19.255.1/24
I
  rm -f "$STATE/run/dockerd.pid" "$STATE/run/inner.pid"
  setsid nohup unshare -m -n -C -p --fork --kill-child --mount-proc bash "$STATE/run/inside.sh" "$STATE" >"$STATE/dockerd.log" 2>&1 </dev/null &
  local outer=$!
  for _ in $(seq 100); do pgrep -P $outer >"$STATE/run/inner.pid" && break; sleep .02; done
  for _ in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep .1; done
  if docker version >/dev/null 2>&1; then
    empty >"$STATE/down.log" 2>&1 || { tail -5 "$STATE/down.log"; die "what an engine that was cut off has left cannot be removed"; }
    step "engine up (in its own namespaces)"; return
  fi
  tail -5 "$STATE/dockerd.log"; die "dockerd did not come up"
}

image() {
  docker image inspect local/base:bookworm >/dev/null 2>&1 || docker import -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
     -c 'ENV LANG=C.UTF-8' -c 'CMD ["python3"]' "$STATE/base.tar" local/base:bookworm >/dev/null
  cat >"$STATE/ctx/Dockerfile" <<'D'
FROM local/base:bookworm
COPY wheels /opt/wheels
RUN ldconfig && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && mkdir -p /tmp /root && chmod 1777 /tmp \
 && PYTHONPATH=$(echo /opt/wheels/pip-*.whl) python3 -m pip install -q --no-index /opt/wheels/pip-*.whl
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels PIP_ROOT_USER_ACTION=ignore
D
  docker build -q -t $BASE "$STATE/ctx" >"$STATE/image.log" 2>&1 || { tail -5 "$STATE/image.log"; die "base image failed"; }
  step "base image: $BASE"
  # all services have one image: built once here, not once for each of them
  docker build -q -t $IMAGE -f "$PROJECT/deploy/Dockerfile" "$PROJECT" >"$STATE/build.log" 2>&1 || { tail -20 "$STATE/build.log"; die "the image does not build"; }
  step "image: $IMAGE, $(( $(docker image inspect -f '{{.Size}}' $IMAGE)/1000000 )) MB"
}

tools_base() { # this machine's Java, and the packages of the audit and the report as PYTHON has them: written once, never packed
  local home container; home=$("$PROJECT/tools/find-java.sh"); container=$(docker create $BASE)
  "$PYTHON" - "$home" "$PROJECT/pyproject.toml" <<'P' | docker cp - "$container:/"
import os, re, subprocess, sys, tarfile, tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
home = Path(sys.argv[1]).resolve(); merged = Path("/lib").is_symlink()
def real(path): return re.sub(r"^/(lib\w*)/", r"/usr/\1/", path) if merged else path
left_out = {"jmods", "legal", "man", "include", "demo", "src.zip"}
files = {}
for folder, folders, names in os.walk(home):
    folders[:] = [f for f in folders if f not in left_out]
    files |= {str(p): p for name in names if name not in left_out and (p := Path(folder, name)).exists()}
elf = [str(p) for p in files.values() if p.open("rb").read(4) == b"\x7fELF"]
found = subprocess.run(["ldd", *elf], capture_output=True, text=True).stdout
files |= {real(p): Path(p) for p in re.findall(r"=> (/\S+) \(0x", found) if not Path(p).is_relative_to(home)}
extras = tomllib.loads(Path(sys.argv[2]).read_text())["project"]["optional-dependencies"]
wanted, seen = [need for extra in ("audit", "chaos") for need in extras[extra] if not need.startswith("raftmq")], set()
while wanted:
    need = wanted.pop()
    if "extra ==" in need or (name := re.match(r"[\w.-]+", need)[0].lower()) in seen: continue
    seen.add(name)
    try: package = distribution(name)
    except PackageNotFoundError:
        if ";" in need: continue  # of another system or Python
        raise
    wanted += package.requires or ()
    folder = "dist-packages" if sys.base_prefix == "/usr" else "site-packages"  # Debian's own Python, or another
    inside = f"/usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/{folder}"
    files |= {f"{inside}/{f}": Path(f.locate()) for f in package.files if not str(f).startswith("..") and f.locate().exists()}
    about = package._path  # which a package that was not installed from a wheel does not list
    files |= {f"{inside}/{about.name}/{p.name}": p for p in about.iterdir() if p.is_file()}
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", dereference=True) as tar:
    for name, path in files.items(): tar.add(path, name.lstrip("/"))
    link = tarfile.TarInfo("usr/local/bin/java"); link.type, link.linkname = tarfile.SYMTYPE, str(home / "bin" / "java"); tar.addfile(link)
P
  docker commit "$container" local/tools; docker rm "$container"
}

tools() {
  alive || die "no engine running"
  local stamp; stamp=$(cat "$PROJECT"/{pyproject.toml,requirements.txt,requirements-audit.txt,tools/compose-offline.sh} | sha256sum)
  if [ "$(cat "$STATE/tools.stamp" 2>/dev/null)" != "$stamp" ] || ! docker image inspect local/tools >/dev/null 2>&1; then
    tools_base >"$STATE/tools.log" 2>&1 || { tail -5 "$STATE/tools.log"; die "no base image of the tools (has $PYTHON what the project's extras audit and chaos name?)"; }
    echo "$stamp" >"$STATE/tools.stamp"
  fi
  step "base image of the tools"
  docker build -q -t $TOOLS --build-arg BASE=local/tools -f "$PROJECT/deploy/Dockerfile.tools" "$PROJECT" >"$STATE/tools-build.log" 2>&1 \
    || { tail -20 "$STATE/tools-build.log"; die "the image of the tools does not build"; }
  step "image: $TOOLS, $(( $(docker image inspect -f '{{.Size}}' $TOOLS)/1000000 )) MB"
}

case ${1:-} in
up) shift; [ "$(id -u)" = 0 ] || die "needs root"; : >"$STATE/times"
    wheels & wheels_pid=$!
    packages; base_tar; engine
    wait $wheels_pid || { tail -5 "$STATE/pip.log"; die "wheelhouse failed"; }; step "wheels: $(ls "$STATE/ctx/wheels" | wc -l)"
    image
    compose up -d --no-build "$@" >"$STATE/up.log" 2>&1 || { tail -20 "$STATE/up.log"; die "compose up failed"; }; step "compose up -d"
    for _ in $(seq 240); do # until no container says 'starting'
      docker ps --format '{{.Status}}' | grep -q 'health: starting' || break; sleep .25; done; step "no health check still starting"
    compose ps; LAST=$T0; step "total" ;;
tools) tools ;;
compose) shift; compose "$@" ;;
docker) shift; docker "$@" ;;
in) shift; ns "$@" ;;
forward) shift; alive || die "no engine running"
    setsid nohup python3 - "$STATE" "$(inner)" "$@" >"$STATE/forward.log" 2>&1 </dev/null <<'F' &
import os, socket, sys, threading
pid, ports = int(sys.argv[2]), [int(p) for p in sys.argv[3:]]
outs = [socket.create_server(("127.0.0.1", p)) for p in ports]   # made in the machine's namespace, kept after the switch
fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
import ctypes
if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000): raise OSError(ctypes.get_errno(), "setns")
def pump(a, b):
    try:
        while d := a.recv(65536): b.sendall(d)
    except OSError: pass
    try: b.shutdown(socket.SHUT_WR)
    except OSError: pass
def serve(listener, port):
    while True:
        c, _ = listener.accept()
        try: u = socket.create_connection(("127.0.0.1", port), 5)
        except OSError: c.close(); continue
        for x, y in ((c, u), (u, c)): threading.Thread(target=pump, args=(x, y), daemon=True).start()
ts = [threading.Thread(target=serve, args=x) for x in zip(outs, ports)]
for t in ts: t.start()
F
    echo $! >>"$STATE/run/forward.pids"; sleep .3; kill -0 $! && echo "forwarding $*" ;;
down) alive && empty || true
    for p in $(cat "$STATE/run/forward.pids" 2>/dev/null); do mine "$p" && kill "$p" || true; done; rm -f "$STATE/run/forward.pids"
    alive && kill "$(inner)" || true
    for _ in $(seq 300); do alive || break; sleep .1; done
    ! alive || die "the engine (pid $(inner)) is still stopping"
    find /sys/fs/cgroup -depth -type d -path '*/compose-offline*' -exec rmdir {} + 2>/dev/null || true
    rm -f "$STATE/run/inner.pid"; echo "engine stopped; cache kept in STATE" ;;
*) sed -n '2,/^set -euo/p' "$self" | sed '$d;s/^# \{0,1\}//'; exit 2 ;;
esac
