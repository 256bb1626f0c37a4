#!/usr/bin/env bash
# Tests trainer, embedded engine, ranks, adapters and weights with other versions than the locked ones, in .environments/torch-VERSION:
# `scripts/test_torch.sh torch==2.11.0 transformers==5.17.0`, which is the lower end of what pyproject.toml allows.
# Without arguments it tests that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -gt 0 ] || set -- torch==2.11.0 transformers==5.17.0
case ${1:-} in
torch==*) ;;
*)
    echo "test-torch: the first argument is the version of torch, such as torch==2.11.0; found '$1'" >&2
    exit 2
    ;;
esac
folder=.environments/torch-${1#torch==}
venv_python=$folder/bin/python
log=$folder/areal-setup.log

fail() {
    printf 'test-torch: %s\n' "$1" >&2
    exit 1
}

source scripts/install.sh
source scripts/torch.sh

# What torch and transformers bring along has versions of its own for each of theirs.
constraints() {
    sed -n 's/^\([A-Za-z0-9][^\\]*\).*/\1/p' scripts/locks/dev.txt | grep -vE '^(torch|transformers|huggingface-hub|tokenizers|setuptools|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)=='
}

if [ "$(cat "$folder/areal-setup.stamp" 2>/dev/null)" != "$*" ]; then
    make_venv .venv/bin/python "$folder"
    : >"$log"
    constraints >"$folder/constraints.txt"
    install_torch test-torch "$1"
    progress "test-torch: $folder"
    install_packages --constraint "$folder/constraints.txt" "$@" --editable ./bus --editable ".[dev]" || install_failed "areal-actors[dev] with $*"
    progress_end
    printf '%s\n' "$*" >"$folder/areal-setup.stamp"
fi
"$venv_python" -c 'import torch, transformers; print(f"torch {torch.__version__}, transformers {transformers.__version__}")'
"$venv_python" -m pytest -q tests/test_torch_trainer.py tests/test_trainer_*.py tests/test_hidden_states.py tests/test_tree_attention.py \
    tests/test_token_scores.py tests/test_tensors.py tests/test_optimization.py tests/test_lora.py tests/test_weights.py \
    tests/test_generation_engine.py tests/test_generation_engine_weights.py tests/test_engine_sampling.py tests/test_batch_invariance.py tests/test_prefix_cache.py \
    tests/test_model_families.py tests/test_published_models.py tests/test_real_sizes.py tests/test_rank_parts.py tests/test_rank_models.py tests/test_rank_group.py
