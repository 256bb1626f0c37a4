"""Stand-ins for the commands of Slurm, as scripts."""

from __future__ import annotations

SRUN = """#!/usr/bin/env bash
# A stand-in for Slurm's srun: starts the tasks here, one after the other, and passes signals on.
set -u
group=0 tasks=1 output=/dev/stdout
while [[ $1 == --* ]]; do
    case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --het-group=*) group=${1#*=} ;;
    --output=*) output=${1#*=} ;;
    esac
    shift
done
echo "srun: group $group: $tasks tasks" >>"$SRUN_LOG"
pids=()
for ((task = 0; task < tasks; task++)); do
    file=${output//%t/$task}
    "$@" >>"${file//%j/$SLURM_JOB_ID}" 2>&1 &
    pids+=($!)
done
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
    while kill -0 "$pid" 2>/dev/null; do
        status=0
        wait "$pid" || status=$?
    done
done
exit "$status"
"""


SBATCH = """#!/usr/bin/env bash
# A stand-in for Slurm's sbatch: starts the job at once, here.
set -eu
[[ -z ${SLURM_JOB_ID:-} ]] || { echo "sbatch: inside of another job" >&2; exit 1; }
name=job
for word in "$@"; do
    case $word in
    --wrap=*) wrap=${word#*=} ;;
    --job-name=*) name=${word#*=} ;;
    --comment=*) comment=${word#*=} ;;
    esac
done
number=$(($(ls "$JOBS" | wc -l) + 1))
printf '#!/bin/sh\\n%s\\n' "$wrap" >"$JOBS.$number.sh"
setsid sh "$JOBS.$number.sh" >"$JOBS.$name.log" 2>&1 </dev/null &
echo "$!" >"$JOBS/$number"
echo "$number $name $comment" >"$JOBS.$number.listed"
echo "$number;cluster"
"""


SCANCEL = """#!/usr/bin/env bash
# A stand-in for Slurm's scancel: no job waits here.
echo "$*" >>"$JOBS.scancel"
[[ $1 == --state=PENDING ]] || kill -TERM "$(cat "$JOBS/${*: -1}")"
"""


SQUEUE = """#!/usr/bin/env bash
# A stand-in for Slurm's squeue.
for job in "$JOBS"/*; do
    kill -0 "$(cat "$job")" 2>/dev/null || continue
    number=$(basename "$job")
    if [[ $* == *%j* ]]; then cat "$JOBS.$number.listed"; else echo "$number"; fi
done
"""
