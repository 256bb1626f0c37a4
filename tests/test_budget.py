"""Consequences of measurements of a machine: slots, limits, and the memory, disk and time that `areal-actors check`
prints and refuses."""

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from areal_actors.calibration import calibrate as calibrate_module
from areal_actors.calibration.calibrate import Calibration, DecodeCalibration, Measurement, TrainCalibration, calibrate
from areal_actors.core import machine as machine_module
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.machine import Machine, detect_machine
from areal_actors.recipe import budget, load
from areal_actors.recipe.budget import (
    Lengths,
    checkpoint_bytes,
    describe_budget,
    process_memory,
    seconds_at,
    step_seconds,
)
from areal_actors.recipe.measured import measurements

NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")
RECIPE = """\
run   = "first-run"
steps = 10

[task]
dataset = "arithmetic"
agent   = "agents/adder.py:Adder"
reward  = "gsm8k"

[trainer]
batch_size        = 4
microbatch_tokens = 512

[sampling]
max_tokens = 100

[generation]
max_model_len = 400
"""
CONFIG = {
    "max_position_embeddings": 4096,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
    "vocab_size": 50_000,
}
MEASURED = Calibration(
    decode=DecodeCalibration(
        step_seconds={1: 0.1, 8: 0.2, 32: 0.4, 128: 1.5}, prefill_seconds=0.01, base_bytes=300_000_000
    ),
    train=TrainCalibration(
        forward_seconds=0.004,
        train_seconds=0.01,
        head_seconds=0.005,
        update_seconds=1.0,
        token_bytes=1e6,
        base_bytes=300_000_000,
    ),
)
BIG = Machine(memory_bytes=10**12, disk_bytes=10**12)


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Resolve the recipe with a pretrained model of 12 million parameters, as measured on this machine."""
    (tmp_path / "agents").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents/adder.py").write_text("class Adder:\n    pass\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    save_file({"weight": torch.zeros(12, 1000, 1000, dtype=torch.bfloat16)}, "model/model.safetensors")
    Path("model/tokenizer.json").write_text("{}")
    Path("recipe.toml").write_text(RECIPE)

    def read(*overrides, calibration=MEASURED, machine=BIG):
        monkeypatch.setattr(budget, "detect_machine", lambda _: machine)
        stated = ("model=./model", *overrides)
        return load.load([Path("recipe.toml")], stated, NO_CUDA, measure=lambda *_: calibration)

    return read


def test_slots_and_groups_are_those_beyond_which_generation_is_hardly_faster(read):
    recipe = read().recipe
    # 80 tokens a second with 32 completions, 85 with 128
    assert recipe.concurrent_groups() == 4
    assert recipe.generation.max_num_seqs == 32 + recipe.evaluation.max_concurrent
    assert recipe.actors.rollout_worker.concurrency == 32
    assert read("staleness_gate.max_concurrent=9", "generation.max_num_seqs=77").recipe.concurrent_groups() == 9
    assert read("generation.max_num_seqs=77").recipe.generation.max_num_seqs == 77
    assert read("trainer.batch_size=7").recipe.concurrent_groups() == 7, "a batch has to fit"
    assert read("trainer.batch_size=100").recipe.generation.max_num_seqs == 128 + 16
    unmeasured = read(calibration=None).recipe
    assert (unmeasured.concurrent_groups(), unmeasured.generation.max_num_seqs) == (12, 128)


def test_time_limits_leave_room_for_four_answers_in_a_full_engine(read):
    recipe = read().recipe
    slots = recipe.generation.max_num_seqs
    assert recipe.task.timeout_seconds == pytest.approx(4 * 100 * seconds_at(MEASURED.decode, slots), rel=0.05)
    assert read("sampling.max_tokens=20").recipe.task.timeout_seconds == 120
    assert read("task.timeout_seconds=7").recipe.task.timeout_seconds == 7
    assert 8 < recipe.watchdog.stop_seconds <= 120
    assert recipe.trainer.logprob_check_sequences == 2, "one of sixteen of the batch"


def test_seconds_of_a_decode_step_lie_between_the_measured_ones():
    assert [seconds_at(MEASURED.decode, count) for count in (1, 8, 20, 128)] == pytest.approx([0.1, 0.2, 0.3, 1.5])
    assert seconds_at(MEASURED.decode, 256) == pytest.approx(3.0)


def test_memory_of_each_process_is_that_of_weights_optimizer_cache_and_activations(read):
    recipe = read().recipe
    uses = {use.process: use.size for use in process_memory(recipe, MEASURED, Lengths(100, 100))}
    weights = 12_000_000 * 4
    together = 32 + recipe.evaluation.max_concurrent
    cache = together * 200 * 2 * 10 * 2 * 64 * 4
    assert uses["inference_worker"] == pytest.approx(300_000_000 + weights + cache + 3 * together * 50_000 * 4)
    activations = 512 * 1e6 + 3 * 256 * 50_000 * 4 + 2**24 * 4
    assert uses["trainer"] == pytest.approx(300_000_000 + 4 * weights + activations)
    assert checkpoint_bytes(recipe) == 3 * weights * 2
    lora = read("trainer.lora.rank=4").recipe
    assert {use.process: use.size for use in process_memory(lora, MEASURED, Lengths(100, 100))}["trainer"] == uses[
        "trainer"
    ] - 3 * weights


def test_a_batch_smaller_than_a_micro_batch_takes_the_memory_of_its_tokens(read):
    recipe = read("trainer.microbatch_tokens=100000").recipe
    uses = {use.process: use.size for use in process_memory(recipe, MEASURED, Lengths(100, 10))}
    computed = 4 * (100 + recipe.algorithm.group_size * 10)
    assert uses["trainer"] == pytest.approx(
        300_000_000 + 4 * 12_000_000 * 4 + computed * 1e6 + 3 * 256 * 50_000 * 4 + 2**24 * 4
    )


def test_an_asynchronous_step_takes_the_longer_of_generation_and_training_and_a_synchronous_one_both(read):
    lengths = Lengths(100, 100)
    together = step_seconds(read().recipe, MEASURED, lengths)
    assert together.step == max(together.generating, together.training)
    after_another = step_seconds(read("staleness_gate.max_staleness=0").recipe, MEASURED, lengths)
    assert after_another.step == after_another.generating + after_another.training
    # 32 answers of 100 tokens at 80 tokens a second, and 4 prompts
    assert after_another.generating == pytest.approx(40 + 4, rel=0.05)


def test_check_prints_memory_disk_and_time(read):
    lines = dict(describe_budget(read().recipe, MEASURED, Lengths(100, 100), BIG))
    assert lines["memory"].endswith("of published weights in shared memory")
    assert "80 tokens/s with 32" in lines["speed"]
    assert lines["time"].startswith(
        f"{step_seconds(read().recipe, MEASURED, Lengths(100, 100)).step:.1f} s a step (generation "
    )


@pytest.mark.parametrize(
    ("machine", "overrides", "complaint"),
    [
        (
            Machine(10**9, 10**12),
            (),
            r"`trainer.microbatch_tokens`: the run takes 2.\d\d GB of memory, .* 1.00 GB; lower trainer.microbatch",
        ),
        (
            Machine(10**9, 10**12),
            ("staleness_gate.max_concurrent=100", "generation.max_num_seqs=900", "staleness_gate.max_staleness=30"),
            r"`generation.max_num_seqs`: the run takes .* lower generation.max_num",
        ),
        (Machine(10**12, 10**8), (), r"`checkpoint.keep_last`: checkpoints take up to 288 MB, and 100 MB are free"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_change(read, machine, overrides, complaint):
    with pytest.raises(RecipeError, match=complaint):
        read(*overrides, machine=machine)


def test_only_a_pretrained_model_on_a_cpu_is_measured(read):
    recipe = read(calibration=None).recipe
    decode, train = measurements(recipe, NO_CUDA)
    assert (decode.threads, decode.dtype, train.microbatch_tokens) == (1, "float32", 512)
    assert measurements(recipe, CudaDevices(1, "1 CUDA device")) == (None, None)
    assert measurements(replace(recipe, model="embedded"), NO_CUDA) == (None, None)
    assert measurements(replace(recipe, model="Qwen/Qwen3-0.6B"), NO_CUDA) == (None, None)
    Path("model/tokenizer.json").unlink()
    assert measurements(recipe, NO_CUDA) == (None, None), "a run is refused anyway"


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_that_within_the_limits_of_control_groups(tmp_path, monkeypatch, version):
    top = tmp_path / "memory" if version == 1 else tmp_path
    group = top / "job" / "step"
    group.mkdir(parents=True)
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    for folder, limit in ((top, 2**63 - 4096), (top / "job", 3_000_000), (group, 5_000_000)):
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text("1500000\n")
        (folder / "memory.stat").write_text(f"cache 7\n{names[2]} 500000\n")
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/job/step\n3:cpuset:/\n" if version == 1 else "0::/job/step\n")
    monkeypatch.setattr(machine_module, "GROUPS", tmp_path)
    monkeypatch.setattr(machine_module, "OWN_GROUPS", own)
    assert detect_machine(tmp_path / "runs" / "new").memory_bytes == 2_000_000
    (top / "job" / names[0]).write_text("max\n")
    assert detect_machine(tmp_path / "runs" / "new").memory_bytes == 4_000_000


@pytest.mark.long
@pytest.mark.slow
def test_a_machine_is_measured_for_a_model_in_processes_of_their_own(read, monkeypatch):
    monkeypatch.setattr(calibrate_module, "DEADLINE_SECONDS", 600.0)  # of a machine that is busy with other tests
    read()
    config = {
        **CONFIG,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "intermediate_size": 1024,
        "vocab_size": 3000,
    }
    Path("model/config.json").write_text(json.dumps(config))
    measurement = Measurement(config="model", threads=1, dtype="float32", context=64, most_sequences=8)
    measured = calibrate(measurement, measurement, together=True)
    assert set(measured.decode.step_seconds) == {1, 8}
    assert min(measured.decode.step_seconds.values()) > 0
    assert min(measured.train.forward_seconds, measured.train.update_seconds) > 0
    assert measured.train.head_seconds >= 0, "a difference of two measurements"
    assert measured.train.train_seconds > 0
    # a layer keeps tens of values of its width for each token
    assert 10 * 4 * 512 * 10 < measured.train.token_bytes < 200 * 4 * 512 * 10
