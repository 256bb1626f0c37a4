#!/usr/bin/env bash
# Prints the packages of a lock for this kind of machine: `scripts/locked.sh cpu scripts/locks/dev.txt`. `cuda`: all; `cpu`: without torch and
# the libraries of CUDA that its default build brings along, since the build for the CPU comes from an index of its own; `torch` or `uv`: only that.
set -euo pipefail

awk -v kind="$1" '
    /^[A-Za-z0-9]/ { skipped = kind == "cpu" && /^(torch==|triton==|nvidia-|cuda-)/ || (kind == "torch" || kind == "uv") && index($0, kind "==") != 1 }
    !skipped
' "$2"
