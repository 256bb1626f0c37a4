# Daily commands. `just` alone lists them. The first command creates .venv.

set positional-arguments

python := quote(justfile_directory() / ".venv/bin/python")
export AREAL_INVOKED_FROM := invocation_directory()

[private]
default:
    @just --list --unsorted

# create .venv with all dependencies; again when pyproject.toml changes
[private]
setup:
    @./scripts/bootstrap.sh

# train: `just run recipes/gsm8k_grpo.toml`, `just run base.toml overlay.toml staleness_gate.max_staleness=4`
[group("daily")]
[no-exit-message]
run *recipes_and_settings: setup
    @{{ python }} -m areal_actors run --from {{ quote(invocation_directory()) }} "$@"

# write a new agent with tasks, recipe, reward and test: `just init my-agent --kind tools`
[group("daily")]
[no-exit-message]
init *args: setup
    @cd {{ quote(invocation_directory()) }} && {{ python }} -m areal_actors init "$@"

# resume an interrupted or failed run: `just resume gsm8k-grpo`, `just resume gsm8k-grpo trainer.microbatch_tokens=2048`
[group("daily")]
[no-exit-message]
resume *args: setup
    @{{ python }} -m areal_actors resume "$@"

# serve a recipe's model to external agents: `just serve recipes/gsm8k_grpo.toml model=runs/NAME/checkpoints/step-40`
[group("daily")]
[no-exit-message]
serve *recipes_and_settings: setup
    @{{ python }} -m areal_actors serve --from {{ quote(invocation_directory()) }} "$@"

# bring a model to this machine: `just model get smollm2`, `just model convert FILE.gguf`, `just model template FOLDER`
[group("daily")]
[no-exit-message]
model *args: setup
    @cd {{ quote(invocation_directory()) }} && {{ python }} -m areal_actors model "$@"

# record the calls of clients at an inference server, without a run: `just gateway --engine http://127.0.0.1:8000`
[group("daily")]
[no-exit-message]
gateway *args: setup
    @cd {{ quote(invocation_directory()) }} && {{ python }} -m areal_actors serve gateway "$@"

# compare the candidate of a served model with the served version, and promote it: `just promote online-serve`
[group("daily")]
[no-exit-message]
promote *args: setup
    @cd {{ quote(invocation_directory()) }} && {{ python }} -m areal_actors serve promote "$@"

# serve the Tinker API on this machine: `just tinker`, `just tinker --model FOLDER --port 0`
[group("daily")]
[no-exit-message]
tinker *args: setup
    @{{ python }} -m areal_actors serve tinker "$@"

# validate a recipe and print the resolved configuration (dry run)
[group("daily")]
[no-exit-message]
check *recipes_and_settings: setup
    @{{ python }} -m areal_actors check --from {{ quote(invocation_directory()) }} "$@"

# show a run in a browser: `just view gsm8k-grpo`, `just view run.log.xz`
[group("daily")]
[no-exit-message]
view *args: setup
    @{{ python }} -m areal_actors view "$@"

# list the runs of a folder: status, steps, results
[group("daily")]
[no-exit-message]
runs *args: setup
    @{{ python }} -m areal_actors runs "$@"

# show the episodes of a run, or one of them call by call: `just show gsm8k-grpo 12.3`
[group("daily")]
[no-exit-message]
show *args: setup
    @{{ python }} -m areal_actors show "$@"

# compare runs: where their recipes differ, results, curves: `just compare first second --plot curves.png`
[group("daily")]
[no-exit-message]
compare *args: setup
    @{{ python }} -m areal_actors compare "$@"

# write the log of a run to a file
[group("daily")]
[no-exit-message]
export *args: setup
    @{{ python }} -m areal_actors export "$@"

# describe settings of a recipe: `just explain trainer.microbatch_tokens gateway`
[group("daily")]
[no-exit-message]
explain *settings: setup
    @{{ python }} -m areal_actors explain "$@"

# check that a run lost nothing and trained nothing twice: `just audit gsm8k-grpo --recompute`
[group("daily")]
[no-exit-message]
audit *args: setup
    @{{ python }} -m areal_actors audit "$@"

# begin another run at a checkpoint of one: `just fork gsm8k-grpo --at step-20 --name slow trainer.optimizer.lr=1e-5`
fork *args: setup
    @{{ python }} -m areal_actors fork "$@"

# what limits a run and what to change: `just why gsm8k-grpo`
[group("daily")]
[no-exit-message]
why *args: setup
    @{{ python }} -m areal_actors why "$@"

# what a run would have trained under other settings: `just what-if gsm8k-grpo batcher.dynamic_sampling=true --train`
[group("daily")]
[no-exit-message]
what-if *args: setup
    @{{ python }} -m areal_actors what-if "$@"

# what this machine has and lacks for a run, and the abilities of the engines
[group("daily")]
[no-exit-message]
doctor *args: setup
    @{{ python }} -m areal_actors doctor "$@"

# .environments: interpreters of agent frameworks and inference servers; `just environments sglang` creates one of them
[group("daily")]
[no-exit-message]
environments *names: setup
    @./scripts/environments.sh "$@"

# lint and all tests, three files in parallel; `just test -m long` for the long ones, `just test -m "not slow and not long"` for the fast
[group("check")]
[no-exit-message]
test *args: setup lint
    @{{ python }} -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder "$@"

# trainer and engine with the oldest torch and transformers that are supported; `just test-torch torch==2.12.1` with another
[group("check")]
[no-exit-message]
test-torch *versions: setup
    @./scripts/test_torch.sh "$@"

# format, ruff, mypy
[group("check")]
[no-exit-message]
lint: setup
    @{{ python }} -m ruff format --quiet --check .
    @{{ python }} -m ruff check --quiet .
    @{{ python }} -m mypy

# the documentation as a site, in site/
[group("check")]
[no-exit-message]
docs: setup
    @./scripts/environments.sh docs
    @NO_MKDOCS_2_WARNING=1 .environments/docs/bin/python -m mkdocs build --strict --quiet
    @echo "site/index.html"

# docs/path.md: the functions that one sample meets, traced through a run
[group("check")]
[no-exit-message]
path: setup
    @{{ python }} scripts/path.py

# the seeded simulation over many seeds
[group("check")]
[no-exit-message]
simulate seeds="1000": setup
    @AREAL_SIMULATION_SEEDS='{{ seeds }}' {{ python }} -m pytest -q --timeout=0 tests/test_simulation.py

# sbom.json: the software bill of materials of .venv, in CycloneDX's format
[group("check")]
[no-exit-message]
sbom: setup
    @./scripts/environments.sh sbom
    @.environments/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.json .venv/bin/python
    @echo "sbom.json"

# scripts/locks: the versions of all packages that .venv and .environments get, as of today, with hashes; `just lock dev` writes one of them
[group("check")]
[no-exit-message]
lock *names: setup
    @./scripts/lock.sh "$@"

# measure the token path; appends to benchmarks/history.jsonl
[group("bench")]
[no-exit-message]
bench *args: setup
    @{{ python }} benchmarks/bench.py "$@"
