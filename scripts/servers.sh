#!/bin/sh
# Installs the servers of Debian for the tests, where that takes no question: sh scripts/servers.sh
# Never fails: without them the tests run against the servers from requirements/dev.txt alone, and say so.
set -u

missing=
command -v redis-server >/dev/null 2>&1 || missing="redis-server redis-tools"
[ -x /usr/bin/etcd ] || [ -x /usr/local/bin/etcd ] || missing="$missing etcd-server etcd-client"
[ -n "$missing" ] || exit 0

without="The tests that need them (TLS, another version or vendor) will be left out, and counted."
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "servers: not there, and not installed without root and apt-get: $missing. $without"
    exit 0
fi

log=$(mktemp)
# RUNLEVEL=1: Debian's own way to install a service without starting it.
# shellcheck disable=SC2086: the packages are several words
if apt-get update >"$log" 2>&1 &&
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >>"$log" 2>&1; then
    echo "servers: installed $missing"
else
    echo "servers: apt-get could not install $missing ($(tail -n 1 "$log")). $without"
fi
rm -f "$log"
