#!/usr/bin/env bash
# Creates .environments/NAME for each agents/environments/NAME.txt, separate interpreters for agents and clients whose framework conflicts
# with our dependencies, and for each scripts/engines/NAME.txt, those of inference servers. A second start does nothing.
# An environment that pins torch gets the locked version of ours, in the build that fits the machine.
# Requirements with a line `# python: 3.12` get that Python or a later one. `scripts/environments.sh camel sglang` creates only these two.
# Those that ask for a Python, programs from npm, agents/environments/NAME.npm, `docs`, which builds the documentation, and
# `sbom` (scripts/docs.txt, scripts/sbom.txt) are installed only by name.
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

source scripts/install.sh
source scripts/torch.sh

# An engine's requirements are complete, so that pip has nothing to resolve; on a machine with a GPU its own ones hold.
install_engine() {
    if nvidia_device; then
        local wanted
        wanted=$(sed -n 's/^# gpu: //p' "$1")
        install_packages "$wanted" || install_failed "$wanted"
    else
        install_torch "environments: $folder"
        progress "environments: $folder"
        install_locked "scripts/locks/$(basename "$1")" cpu || install_failed "$1"
    fi
}

# Inputs of an environment: its requirements and their lock, its path, the interpreter.
fingerprint() {
    { cat "$@"; pwd; "$python" -c 'import sys; print(sys.base_prefix, sys.version)'; } | cksum
}

# A program from npm; needs Node.js.
install_program() {
    local wanted folder=.environments/$1
    wanted=$(cat "agents/environments/$1.npm")
    if [ "$(cat "$folder/areal-setup.stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    command -v npm >/dev/null || fail "$1 needs Node.js 18 or later with npm; install it, for example from https://nodejs.org"
    echo "environments: $folder ..."
    npm install --prefix "$folder" --no-audit --no-fund --loglevel=error "$wanted" >&2 || fail "npm could not install $wanted"
    printf '%s\n' "$wanted" >"$folder/areal-setup.stamp"
}

make_environment() {
    if [ -f "agents/environments/$1.npm" ]; then
        install_program "$1"
        return
    fi
    local requirements=agents/environments/$1.txt venv_python=.environments/$1/bin/python folder=.environments/$1
    [ -f "$requirements" ] || requirements=scripts/engines/$1.txt
    [ ! -f "scripts/$1.txt" ] || requirements=scripts/$1.txt # docs, sbom
    [ -f "$requirements" ] || fail "there is no environment $1; known: $(known | xargs) $(programs | xargs) docs sbom"
    local wanted stamp=$folder/areal-setup.stamp log=$folder/areal-setup.log lock=scripts/locks/$1.txt
    local chosen
    chosen=$(interpreter_for "$requirements")
    local python=$chosen
    wanted=$(fingerprint "$requirements" "$lock")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$folder/bin/python" -c '' 2>/dev/null; then
        return
    fi
    make_venv "$python" "$folder"
    : >"$log"
    case $requirements in
    scripts/engines/*) install_engine "$requirements" ;;
    *)
        local kind=cuda
        if grep -q '^torch==' "$requirements"; then
            install_torch "environments: $folder"
            kind=$(torch_kind)
        fi
        progress "environments: $folder"
        install_locked "$lock" "$kind" || install_failed "$lock"
        ;;
    esac
    if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
        # Python writes no bytecode at run time here: without this every process compiles its framework again
        "$folder/bin/python" -m compileall -q -j 0 "$folder"/lib/python*/site-packages >>"$log" 2>&1 || true
    fi
    progress_end
    printf '%s\n' "$wanted" >"$stamp"
}

known() {
    for file in agents/environments/*.txt scripts/engines/*.txt; do basename "$file" .txt; done
}

usual() {
    for name in $(known); do grep -qs '^# python: ' "agents/environments/$name.txt" || echo "$name"; done
}

programs() {
    for file in agents/environments/*.npm; do basename "$file" .npm; done
}

if [ $# -eq 0 ]; then
    mapfile -t names < <(usual)
    set -- "${names[@]}"
fi
for name in "$@"; do
    make_environment "$name"
done
