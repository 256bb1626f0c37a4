#!/usr/bin/env bash
# Creates .environments/NAME for each agents/environments/NAME.txt: separate interpreters for agents whose framework conflicts
# with our dependencies. A second start does nothing. `scripts/environments.sh camel` creates only that one.
#
#   PYTHON        the interpreter to build them from (default: that of .venv, else python3)
#   PIP_INDEX_URL and the rest of pip's own settings hold as usual
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'environments: %s\n' "$1" >&2
    exit 1
}

python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v "${PYTHON:-python3}") || fail "found no ${PYTHON:-python3}; set PYTHON to a Python 3.11 or later"

# Inputs of an environment: its requirements, its path, the interpreter.
fingerprint() {
    { cat "$1"; pwd; "$python" -c 'import sys; print(sys.base_prefix, sys.version)'; } | cksum
}

make_environment() {
    local requirements=agents/environments/$1.txt folder=.environments/$1
    local known
    known=$(cd agents/environments && echo *.txt)
    [ -f "$requirements" ] || fail "there is no $requirements; known: ${known//.txt/}"
    local wanted stamp=$folder/areal-setup.stamp log=$folder/areal-setup.log
    wanted=$(fingerprint "$requirements")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$folder/bin/python" -c '' 2>/dev/null; then
        return
    fi
    echo "environments: $folder ..."
    "$python" -m venv --clear "$folder"
    if ! "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-compile --requirement "$requirements" >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        fail "pip could not install $requirements (the lines above are the end of $log)"
    fi
    if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
        # Python writes no bytecode at run time here: without this every process compiles its framework again
        "$folder/bin/python" -m compileall -q -j 0 "$folder"/lib/python*/site-packages >>"$log" 2>&1 || true
    fi
    printf '%s\n' "$wanted" >"$stamp"
}

if [ $# -eq 0 ]; then
    set -- $(cd agents/environments && for file in *.txt; do echo "${file%.txt}"; done)
fi
for name in "$@"; do
    make_environment "$name"
done
