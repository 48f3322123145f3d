#!/usr/bin/env bash
# Train one model on two hosts of a network, both of them made here: two network namespaces with a cable between.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/two_hosts.sh [--per-host N] -- DATA [ARGUMENTS FOR fairseq-train]

Makes two hosts with addresses of their own, 10.97.0.1 and 10.97.0.2, that share this machine's disk, and starts on
each the command that two real machines would be given, N workers on each (default: 1), all on CPUs. It shows that
what is documented for two machines trains one model, without two machines. The hosts vanish with the command.
Linux with iproute2; as root, or where users may make namespaces of their own.

Example:
  bash scripts/two_hosts.sh -- data/bin --user-dir vaswani_plugin --arch vaswani2017_tiny --max-update 100
TEXT
}

die() { echo "two_hosts.sh: $*" >&2; exit 1; }

if [ "${VASWANI_IN_NAMESPACE:-}" != $PPID ]; then
    per_host=1
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) usage; exit 0 ;;
            --) shift; break ;;
            --per-host) per_host=${2:-}; shift; shift || true ;;
            *) die "unknown argument '$1'; what is for fairseq-train comes after --" ;;
        esac
    done
    [[ $per_host =~ ^[1-9][0-9]?$ ]] || die "--per-host must be a number from 1 to 99, not '$per_host'"
    [ $# -ge 1 ] || die "DATA is missing, the directory of fairseq-preprocess; see --help"
    for tool in unshare nsenter ip torchrun fairseq-train; do
        command -v $tool >/dev/null || die "$tool is not on PATH"
    done
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(--user --map-root-user)
    unshare ${as_root[@]+"${as_root[@]}"} --net --mount true 2>/dev/null ||
        die "this user may not make network namespaces: run it as root"
    # Not exec: the script inside knows by its parent that it is inside.
    VASWANI_IN_NAMESPACE=$$ unshare ${as_root[@]+"${as_root[@]}"} --net --mount bash "${BASH_SOURCE[0]}" "$per_host" "$@"
    exit
fi

per_host=$1
shift
mount -t tmpfs hosts /run # names of namespaces lie there; this mount is seen by nobody else
for host in 1 2; do ip netns add "host$host"; done
ip link add cable1 netns host1 type veth peer name cable2 netns host2
for host in 1 2; do
    ip -n "host$host" address add "10.97.0.$host/24" dev "cable$host"
    ip -n "host$host" link set "cable$host" up
    ip -n "host$host" link set lo up
done

on_host() {
    GLOO_SOCKET_IFNAME=cable$1 nsenter "--net=/run/netns/host$1" torchrun --no-python --nnodes 2 --node-rank $(($1 - 1)) \
        --nproc-per-node "$per_host" --master-addr 10.97.0.1 --master-port 29500 fairseq-train "${@:2}" --cpu
}
on_host 2 "$@" >/dev/null &
second=$!
trap 'kill $second 2>/dev/null || true' EXIT
on_host 1 "$@"
wait $second
