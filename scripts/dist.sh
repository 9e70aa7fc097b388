#!/bin/sh
# Builds sdist and wheel of the core and of each plugin: sh scripts/dist.sh PYTHON DIRECTORY
# From a copy of the tracked files, so that nothing left lying about can find its way in.
set -eu

python=$1
out=$2
cd "$(dirname "$0")/.."
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

git ls-files -z >"$tree/.files"
tar -c --null -T "$tree/.files" -f "$tree/.tar"
tar -x -f "$tree/.tar" -C "$tree"
rm -rf "$out"
for project in "$tree" "$tree"/plugins/*; do
    [ -f "$project/pyproject.toml" ] || continue
    "$python" -m build --outdir "$out" "$project" >"$tree/.log" 2>&1 || { cat "$tree/.log" >&2; exit 1; }
done
ls "$out"
