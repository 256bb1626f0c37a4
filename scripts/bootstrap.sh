#!/usr/bin/env bash
# Creates .venv with the dependencies of runs and tests. A second start finds the stamp and does nothing.
#
#   PYTHON        the interpreter to build .venv from (default: the newest python3 that is 3.11 or later)
#   PIP_INDEX_URL and the rest of pip's own settings hold as usual
# With uv on the PATH its cache and speed are used, from the same indexes; without it, pip installs uv first where a wheel of it can be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv_python=.venv/bin/python
stamp=.venv/areal-setup.stamp
log=.venv/areal-setup.log

fail() {
    printf 'set-up: %s\n' "$1" >&2
    exit 1
}

source scripts/install.sh
source scripts/torch.sh

# Inputs of the environment: these files, the path (the package is installed in editable mode), the interpreter.
fingerprint() {
    { cat pyproject.toml bus/pyproject.toml scripts/{bootstrap,install,locked,torch}.sh scripts/locks/{build,dev}.txt; pwd; printf '%s' "${PYTHON:-}"; } | cksum
}

has_python_311() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        has_python_311 "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or later; set PYTHON to one that is"
        printf '%s' "$PYTHON"
        return
    fi
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if has_python_311 "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or later on the PATH; install one, or set PYTHON=/path/to/python3"
}

# An incomplete .venv of an earlier set-up is kept if it works and has the same Python.
usable() {
    "$venv_python" -c 'import pip' 2>/dev/null && [ "$(origin "$venv_python")" = "$(origin "$python")" ]
}

origin() {
    "$1" -c 'import sys; print(sys.base_prefix, sys.version)'
}

wanted=$(fingerprint)
if [ -x "$venv_python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$venv_python" -c '' 2>/dev/null; then
    exit 0
fi

python=$(find_python)
installer=pip
if command -v uv >/dev/null; then installer=$(uv --version | cut -d ' ' -f 1,2); fi
echo "set-up: .venv from $("$python" --version) with $installer (once; about a minute, longer with a slow network)"
if ! usable; then
    make_venv "$python" .venv ||
        fail "$python -m venv did not work (its message is above). On Debian and Ubuntu: apt install python3-venv"
fi
rm -f "$stamp"
: >"$log"
if ! find_uv >/dev/null; then
    progress "set-up: uv, to install the rest"
    install_uv scripts/locks/dev.txt || echo "uv cannot be installed here; pip installs all" >>"$log"
    progress_end
fi
install_torch set-up
progress "set-up: the other packages"
install_locked scripts/locks/dev.txt "$(torch_kind)" || install_failed scripts/locks/dev.txt
install_locked scripts/locks/build.txt || install_failed scripts/locks/build.txt
install_packages --no-deps --no-build-isolation --editable ./bus --editable . || install_failed areal-actors
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    # Python writes no bytecode at run time here: without this every process compiles torch again
    progress "set-up: bytecode"
    "$venv_python" -m compileall -q -j 0 "$("$venv_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" >>"$log" 2>&1 || true
fi
progress_end
printf '%s\n' "$wanted" >"$stamp"
echo "set-up: done in $SECONDS s"
