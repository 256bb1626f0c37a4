#!/usr/bin/env bash
# Builds the distributions of a release, and tests them from their wheels, in environments of their own.
#
#   scripts/release.sh build FOLDER          sdist and wheel of areal-bus and areal-actors, checked by twine
#   scripts/release.sh test FOLDER [EXTRAS]  installs the wheels and uses them outside of the clone; with `embedded` it trains two steps
#
#   PYTHON   the interpreter (default: python3)
# Publishing is a person's act: .github/workflows/release.yml waits for it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

environment() {
    "$python" -m venv "$work/$1"
    "$work/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${@:2}"
}

build() {
    "$python" "$root/scripts/version.py"
    environment tools build twine
    local each
    for each in "$root/bus" "$root"; do
        "$work/tools/bin/python" -m build --outdir "$1" "$each"
    done
    "$work/tools/bin/python" -m twine check --strict "$1"/*
}

test_wheels() {
    local bus=("$1"/areal_bus-*.whl) actors=("$1"/areal_actors-*.whl) extras=${2:-} version
    version=$("$python" "$root/scripts/version.py")
    environment wheels "${bus[0]}" "${actors[0]}${extras:+[$extras]}"
    cd "$work"
    local command="$work/wheels/bin/areal-actors"
    test "$("$command" --version)" = "areal-actors $version"
    "$work/wheels/bin/python" -c 'import areal_actors, areal_bus, sys; sys.exit(not areal_actors.__file__.startswith(sys.prefix))'
    "$command" init mine >/dev/null
    if [ "$extras" = embedded ]; then
        "$command" check gsm8k_grpo --devices 0 >/dev/null
        "$command" run gsm8k_grpo profile=embedded steps=2 evaluation.tasks=4
        "$command" audit gsm8k-grpo
    else
        "$command" explain staleness_gate >/dev/null
        "$command" doctor >/dev/null || true # it lists what this machine lacks
    fi
    printf 'release: areal-actors %s works from its wheel%s\n' "$version" "${extras:+, with $extras}"
}

case ${1:-} in
    build) build "$(mkdir -p "$2" && cd "$2" && pwd)" ;;
    test) test_wheels "$(cd "$2" && pwd)" "${3:-}" ;;
    *) sed -n '2,8p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
