#!/usr/bin/env bash
# Start a Docker engine where none answers, and wait for it. Usage, as root: scripts/start-engine.sh [PIDFILE]
# Writes the engine's process id to PIDFILE if this script started it, so that the caller can stop it again.
set -euo pipefail

pidfile=${1:-}
if docker info >/dev/null 2>&1; then
    echo "a Docker engine answers already"
    exit 0
fi
command -v dockerd >/dev/null || { echo "dockerd is not installed; try: apt-get install docker.io" >&2; exit 1; }

log=$(mktemp -t dockerd.XXXXXX.log)
setsid dockerd >"$log" 2>&1 </dev/null &
engine=$!
if [ -n "$pidfile" ]; then echo "$engine" >"$pidfile"; fi
for _ in $(seq 120); do
    if docker info >/dev/null 2>&1; then
        echo "a Docker engine runs: process $engine, $(docker info --format '{{.Driver}}'), log in $log"
        exit 0
    fi
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.5
done
kill "$engine" 2>/dev/null || true
echo "the Docker engine did not come up within 60 s; the end of its log, $log:" >&2
tail -n 15 "$log" >&2
exit 1
