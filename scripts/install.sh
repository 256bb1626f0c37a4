# Installs packages into the environment of $venv_python, with uv where it is on the PATH or in that environment, else with pip; sourced, and
# needs $log and fail.
# `progress NAME` shows the seconds of what runs next, and the last line of $log, until `progress_end`.

# The interpreter for the requirements $1: $python, or another one if they have a line like `# python: 3.12` and $python is older.
interpreter_for() {
    local wanted candidate
    wanted=$(sed -n 's/^# python: //p' "$1")
    if [ -z "$wanted" ]; then
        echo "$python"
        return
    fi
    for candidate in "$python" "python$wanted" python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python; do
        if is_at_least "$wanted" "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    if command -v uv >/dev/null && { uv python find --quiet "$wanted" || uv python install --quiet "$wanted"; } >/dev/null 2>&1; then
        uv python find --quiet "$wanted"
        return
    fi
    fail "$(basename "$1" .txt) asks for Python $wanted or later, and $python is $("$python" -c 'import platform; print(platform.python_version())');
        install it with \`uv python install $wanted\` or from your system's packages, or name one as PYTHON, then start again"
}

# True if the program $2 is a Python of version $1 or later.
is_at_least() {
    "$2" -c 'import sys; sys.exit(sys.version_info[:2] < tuple(map(int, sys.argv[1].split("."))))' "$1" 2>/dev/null
}

# An environment with pip; uv also makes one where Debian's package python3-venv is missing.
make_venv() {
    if ! { command -v uv >/dev/null && uv venv --quiet --seed --clear --python "$1" "$2" 2>/dev/null; }; then
        "$1" -m venv --clear "$2"
    fi
}

# The packages of a lock, by their hashes: another file of the same name and version, from whatever index, is refused. $2: cpu or cuda
# (scripts/locked.sh).
install_locked() {
    local requirements
    requirements=$(dirname "$venv_python")/../areal-locked.txt
    scripts/locked.sh "${2:-cuda}" "$1" >"$requirements"
    install_packages --no-deps --require-hashes --requirement "$requirements"
}

# The program uv: of the PATH, or of the environment.
find_uv() {
    command -v uv || { [ -x "$(dirname "$venv_python")/uv" ] && printf '%s' "$(dirname "$venv_python")/uv"; }
}

# The locked uv, as a wheel: with pip it takes seconds, and installs the rest in a part of pip's time.
install_uv() {
    local requirements
    requirements=$(dirname "$venv_python")/../areal-locked.txt
    scripts/locked.sh uv "$1" >"$requirements"
    install_packages --no-deps --require-hashes --only-binary :all: --requirement "$requirements"
}

# What uv cannot install, pip may: it knows more kinds of indexes and proxies. uv looks on the first index of pip's settings and in its folders
# of wheels; further indexes are for pip, and for a lock its hashes decide.
install_packages() {
    local uv
    if uv=$(find_uv); then
        local option options=()
        while read -r option; do options+=("$option"); done < <(pip_settings)
        if "$uv" pip install --python "$venv_python" "${options[@]}" "$@" >>"$log" 2>&1; then
            return
        fi
        echo "uv did not install $*; trying pip" >>"$log"
    fi
    "$venv_python" -m pip install --progress-bar off --disable-pip-version-check --no-input --no-compile "$@" >>"$log" 2>&1
}

# Index and folders of wheels of pip's own settings, as options of uv.
pip_settings() {
    "$venv_python" -m pip config list 2>>"$log" | "$venv_python" -c '
import ast, sys
for line in sys.stdin:
    name, _, value = line.strip().partition("=")
    option = name.rpartition(".")[2]
    if option in ("index-url", "find-links"):
        print(*(f"--{option}={one}" for one in ast.literal_eval(value).split()), sep="\n")'
}

install_failed() {
    progress_end
    tail -n 15 "$log" >&2
    fail "$1 could not be installed (the lines above are the end of $log).
        No network? Behind a proxy set HTTPS_PROXY; with a mirror set PIP_INDEX_URL; then start again; completed steps are kept."
}

progress() {
    progress_end
    progress_name=$1 progress_since=$SECONDS
    _tick "$(wc -l 2>/dev/null <"$log" || echo 0)" &
    progress_ticker=$!
    trap progress_end EXIT
}

progress_end() {
    [ -n "${progress_ticker:-}" ] || return 0
    kill "$progress_ticker" 2>/dev/null || true
    wait "$progress_ticker" 2>/dev/null || true
    progress_ticker=
    if [ -t 1 ]; then printf '\r\033[K'; fi
    echo "$progress_name: $((SECONDS - progress_since)) s"
}

# On a terminal one line, again each second; elsewhere a line every 10 s. Lines of the log from before this step, the argument, are not shown.
_tick() {
    local seconds line shown=0
    while sleep 1; do
        seconds=$((SECONDS - progress_since))
        line="$progress_name, $seconds s: $(tail -n "+$(($1 + 1))" "$log" 2>/dev/null | tail -n 1 | tr -d '\r')"
        if [ -t 1 ]; then
            printf '\r\033[K%s' "${line:0:$((${COLUMNS:-80} - 1))}"
        elif [ $((seconds - shown)) -ge 10 ]; then
            shown=$seconds
            echo "${line:0:110}"
        fi
    done
}
