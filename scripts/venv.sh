#!/bin/sh
# Makes the virtual environment that `make` works in: sh scripts/venv.sh DIRECTORY
#
#   PYTHON  the Python to use; empty: the first of python3.11, 3.12, 3.13, 3.10, python3 that will do
#   TORCH   where torch comes from
#             auto  a wheel at hand (pip's find-links), or pip's own choice where that is small; else none
#             yes   whatever pip fetches: on Linux with x86_64 a CUDA build of several GB
#             no    nowhere; the tests that need torch are deselected, and say so
set -eu

venv=$1
torch=${TORCH:-auto}
here=$(dirname "$0")/..
requirements=$here/requirements

stop() { printf 'venv: %s\n' "$*" >&2; exit 1; }
say() { printf 'venv: %s\n' "$*"; }

case $torch in auto | yes | no) ;; *) stop "TORCH=$torch is not one of auto, yes, no" ;; esac

# Prints what is wrong with a Python; nothing if it will do.
fault() {
    command -v "$1" >/dev/null 2>&1 || { echo "$1 is not there"; return; }
    "$1" - 2>/dev/null <<'PYTHON' || echo "$1 does not start"
import platform, sys
if sys.version_info < (3, 10):
    print("%s is Python %s, and 3.10 is the oldest that will do" % (sys.executable, platform.python_version()))
else:
    try:
        import ensurepip, venv
    except ImportError as error:
        print("%s cannot make environments (%s): install its venv package, on Debian python3-venv"
              % (sys.executable, error))
PYTHON
}

if [ -n "${PYTHON:-}" ]; then
    wrong=$(fault "$PYTHON")
    [ -z "$wrong" ] || stop "$wrong."
else
    # 3.11 first: the one for which CPU wheels of torch most often lie at hand.
    faults=
    for candidate in python3.11 python3.12 python3.13 python3.10 python3; do
        wrong=$(fault "$candidate")
        if [ -z "$wrong" ]; then PYTHON=$candidate; break; fi
        faults="$faults
  $wrong"
    done
    [ -n "${PYTHON:-}" ] || stop "no Python will do; name one with PYTHON=/path/to/python3. Tried:$faults"
fi

# An environment of the same Python is kept and brought up to date; one of another is made anew.
where='import sys; print(sys.base_prefix, sys.version)'
say "$venv with $("$PYTHON" -V) ($PYTHON)"
if [ "$("$venv/bin/python" -c "$where" 2>/dev/null)" != "$("$PYTHON" -c "$where")" ]; then
    "$PYTHON" -m venv --clear "$venv"
fi
pip() { "$venv/bin/python" -m pip -qq --disable-pip-version-check "$@"; }

# --no-index leaves pip only what lies at hand; it never reaches for a build of several GB.
if [ "$torch" = auto ]; then
    pinned=$(grep '^torch==' "$requirements/constraints.txt")
    if pip install --no-index --no-deps "$pinned" >/dev/null 2>&1; then
        torch=yes
    elif [ "$(uname -s)" = Darwin ]; then
        torch=yes
    else
        torch=no
        say "no wheel of $pinned for this Python lies at hand (pip's find-links), and the one that pip would fetch"
        say "may be a CUDA build of several GB. Going on without torch: tests that need it will be deselected,"
        say "and the demo will not run. TORCH=yes lets pip fetch it."
    fi
fi

set -- -c "$requirements/constraints.txt" -r "$requirements/dev.txt"
if [ "$torch" = no ]; then
    pip uninstall --yes torch 2>/dev/null
else
    set -- "$@" -r "$requirements/torch.txt"
fi
set -- "$@" -e "$here"
for plugin in "$here"/plugins/*/pyproject.toml; do
    [ -f "$plugin" ] || continue
    # Without torch a plugin that requires it stays out: pip would fetch torch for it.
    [ "$torch" = yes ] || ! grep -q '^ *"torch' "$plugin" || continue
    set -- "$@" -e "$(dirname "$plugin")"
done
pip install "$@" || stop "pip could not install what requirements/ names; its own words are above."
say "ready"
