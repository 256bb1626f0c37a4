#!/usr/bin/env bash
# Writes scripts/locks/NAME.txt, the version of every package, direct or not, that scripts/bootstrap.sh (`dev`) and scripts/environments.sh
# install, so that a new release of a dependency changes nothing here until this script has run and the tests have passed.
# Each with the hashes of all its files, by which it is installed.
# For every platform and every Python from 3.11 on, or from that of a line `# python: 3.12` in the requirements. `scripts/lock.sh trackers` writes
# only this one; the lists of inference servers in scripts/engines are complete themselves, and get their hashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

locked() {
    echo dev build docs image sbom
    for file in agents/environments/*.txt scripts/engines/*.txt; do basename "$file" .txt; done
}

lock() {
    local inputs
    case $1 in
    dev) inputs=(pyproject.toml --extra dev --extra embedded --extra inspect --extra data --extra gguf --extra rewards --extra mcp --extra reader) ;;
    build) inputs=(scripts/build.txt --constraint scripts/locks/dev.txt) ;; # it goes into .venv, too
    docs | sbom) inputs=("scripts/$1.txt") ;;
    image) inputs=(pyproject.toml --extra embedded --extra inspect --extra data --extra rewards --constraint scripts/locks/dev.txt) ;;
    sglang | vllm) inputs=("scripts/engines/$1.txt" --no-deps) ;; # complete lists
    *) inputs=("agents/environments/$1.txt") ;;
    esac
    local python
    python=$(sed -n 's/^# python: //p' "${inputs[0]}")
    .venv/bin/python -m uv pip compile --quiet --universal --python-version "${python:-3.11}" --upgrade --no-annotate --no-emit-package areal-bus --generate-hashes \
        --custom-compile-command "just lock $1" --output-file "scripts/locks/$1.txt" "${inputs[@]}"
}

if [ $# -eq 0 ]; then
    mapfile -t names < <(locked | xargs -n 1)
    set -- "${names[@]}"
fi
for name in "$@"; do
    echo "lock: scripts/locks/$name.txt"
    lock "$name"
done
