#!/bin/sh
# Installs a Redis server for the tests, where that takes no question: sh scripts/redis-server.sh
# Never fails: without it the tests run against the server from requirements/dev.txt alone, and say so.
set -u

command -v redis-server >/dev/null 2>&1 && exit 0

without="the tests that need it (TLS, a second vendor) will be deselected"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "redis-server: not on PATH, and not installed without root and apt-get; $without."
    exit 0
fi

log=$(mktemp)
# RUNLEVEL=1: Debian's own way to install a service without starting it.
if apt-get update >"$log" 2>&1 &&
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends redis-server redis-tools >>"$log" 2>&1; then
    echo "redis-server: installed $(redis-server --version | cut -d' ' -f1-3)"
else
    echo "redis-server: apt-get could not install it ($(tail -n 1 "$log")); $without."
fi
rm -f "$log"
