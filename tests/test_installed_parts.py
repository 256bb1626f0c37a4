"""Parts of another distribution: found by their entry points, examined, named in errors, run, and proved by the shipped
contracts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.live_run import ROOT

STRANGER = ROOT / "tests" / "support" / "other_parts"
POINTS = """
[areal_actors.engines]
echo = areal_echo:EchoEngine
[areal_actors.rewards]
brevity = areal_echo:Brevity
[areal_actors.tool_formats]
arrows = areal_echo:ARROWS
[areal_actors.trackers]
lines = areal_echo:LinesTracker
[areal_actors.readers]
.rows = areal_echo:read_rows
[areal_actors.algorithms]
centered = areal_echo:Centered
[areal_actors.checks]
patience = areal_echo:find_problems
[areal_actors.commands]
count-runs = areal_echo:count_runs
"""
RECIPE = """\
run   = "echo"
steps = 2
model = "embedded"

[task]
dataset        = "tasks.rows"
agent          = "AGENT:Gsm8kAgent"
reward         = "brevity"
reward_options = { most = 200 }
held_out       = 8

[algorithm]
name       = "custom"
path       = "centered"
group_size = 4

[trainer]
batch_size = 4

[sampling]
max_tokens = 32

[generation]
engine  = "echo"
options = { times = 3 }

[gateway]
tool_format = "arrows"

[track]
to = ["lines"]

[evaluation]
tasks = 4

[warm_start]
steps      = 2
tail_steps = 0
"""


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with a recipe, and an environment with the metadata that an installer writes for the stranger's
    distribution."""
    metadata = tmp_path / "site" / "areal_echo-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: areal-echo\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "tasks.rows").write_text("".join(f"What is {n} plus {n}?|{2 * n}\n" for n in range(1, 41)))
    (folder / "recipe.toml").write_text(RECIPE.replace("AGENT", str(ROOT / "agents/gsm8k.py")))
    return folder


def run(folder: Path, *words: str, points: str = "", seconds: float = 300) -> subprocess.CompletedProcess[str]:
    metadata = folder.parent / "site" / "areal_echo-0.1.dist-info" / "entry_points.txt"
    if points:
        metadata.write_text(points)
    path = os.pathsep.join(map(str, (ROOT, STRANGER, folder.parent / "site")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


def areal(folder: Path, *words: str, **options: str) -> str:
    done = run(folder, "areal_actors", *words, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_its_parts_are_listed_with_their_settings(elsewhere):
    assert "count-runs" in areal(elsewhere, "--help")
    assert areal(elsewhere, "count-runs", "runs") == "0 runs\n"
    assert areal(elsewhere, "count-runs", "--help") == "0 runs\n", "its words are its own"
    explained = areal(elsewhere, "explain", "generation.engine", "task.reward", "algorithm.path")
    assert (
        "installed here: echo (areal-echo 0.1)\n        times: whole number; default: 2; Copies of the prompt."
        in explained
    )
    assert (
        "installed here: brevity (areal-echo 0.1)\n        most: whole number; default: 100; Characters from"
        in explained
    )
    assert "scale_by_std: true or false; default: false" in explained
    assert "        group_size:" not in explained.partition("algorithm.path")[2], "a setting of every algorithm"
    found = run(elsewhere, "areal_actors", "doctor", "--json").stdout
    parts = {finding["name"]: finding["found"] for finding in json.loads(found)["findings"]}
    assert parts["tracker lines"] == "areal_echo:LinesTracker of areal-echo 0.1"
    assert {
        "engine echo",
        "reward brevity",
        "tool_format arrows",
        "reader .rows",
        "algorithm centered",
        "check patience",
        "command count-runs",
    } <= parts.keys()


@pytest.mark.slow
def test_check_names_what_is_wrong_with_their_use(elsewhere):
    areal(elsewhere, "check", "recipe.toml", "--static")
    changes = [
        "generation.options.tmes=3",
        "task.reward_options.mst=1",
        "gateway.tool_format=arrowz",
        "track.to=['line']",
    ]
    done = run(elsewhere, "areal_actors", "check", "recipe.toml", "--static", *changes)
    assert done.returncode == 2
    for expected in (
        "`generation.options`: `tmes` is not a setting; did you mean `times`?",
        "`task.reward_options`: `mst` is not a setting; did you mean `most`?",
        '`gateway.tool_format`: found "arrowz"; did you mean `arrows`?',
        '`track.to`: found "line"; did you mean `lines`?',
    ):
        assert expected in done.stderr
    done = run(elsewhere, "areal_actors", "check", "recipe.toml", "--static", "sampling.max_tokens=3", "steps=2000")
    assert done.stderr.splitlines() == [
        "override `steps=2000`: `steps`: found 2000, but an echo has nothing to learn in 3 tokens; write at most 1000"
    ], "a check of its own"
    done = run(
        elsewhere, "areal_actors", "check", "recipe.toml", "--static", "generation.engine=ecco", "task.reward=brevitty"
    )
    assert '`generation.engine`: found "ecco"; did you mean `echo`?' in done.stderr
    assert '`task.reward`: found "brevitty"; did you mean `brevity`?' in done.stderr


@pytest.mark.slow
def test_a_part_that_cannot_be_imported_is_named_with_its_distribution(elsewhere):
    broken = POINTS.replace("areal_echo:EchoEngine", "areal_echo:Missing")
    done = run(elsewhere, "areal_actors", "check", "recipe.toml", "--static", points=broken)
    why = (
        "the engine `echo` of areal-echo 0.1 cannot be loaded: AttributeError: module 'areal_echo' has no attribute"
        " 'Missing'"
    )
    assert (done.returncode, f"`generation.engine`: {why}" in done.stderr) == (2, True), done.stderr
    done = run(elsewhere, "areal_actors", "doctor")
    assert why in done.stdout
    assert "update or remove areal-echo" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("Missing", "the check `patience` of areal-echo 0.1 cannot be loaded: AttributeError"),
        (
            "count_runs",
            "the check patience (areal-echo 0.1) has a parameter `words`; parameters are named recipe, facts",
        ),
    ],
)
def test_a_check_that_cannot_be_asked_is_named_with_its_distribution(elsewhere, target, why):
    broken = POINTS.replace("areal_echo:find_problems", f"areal_echo:{target}")
    done = run(elsewhere, "areal_actors", "check", "recipe.toml", "--static", points=broken)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_name_of_ours_stays_ours(elsewhere):
    points = POINTS.replace("brevity =", "gsm8k =").replace("count-runs =", "show =")
    assert "installed here: gsm8k" not in areal(elsewhere, "explain", "task.reward", points=points)
    assert "usage: " in areal(elsewhere, "show", "--help")


PARTS = tuple(
    f"--areal-part={part}"
    for part in (
        "engine:echo",
        "tool_format:arrows",
        "tracker:lines",
        "reward:brevity",
        "reader:.rows",
        "algorithm:centered",
    )
)
CONTRACT = (
    "pytest",
    "-q",
    "-p",
    "areal_actors.contracts.plugin",
    "-p",
    "no:cacheprovider",
    "--pyargs",
    "areal_actors.contracts.test_parts",
)


@pytest.mark.long
@pytest.mark.slow
def test_the_contracts_prove_its_parts(elsewhere):
    done = run(elsewhere, *CONTRACT, *PARTS)
    assert (done.returncode, "34 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.slow
def test_the_contracts_find_what_is_wrong(elsewhere):
    source = (STRANGER / "areal_echo.py").read_text()
    for sound, broken in (
        ("whole = (prompt * self.times)[resumed_tokens:]", "whole = prompt * self.times"),
        ("arguments=json.dumps(arguments)", 'arguments="{}"'),
        ("self.sent.update(dict.fromkeys", "dict().update(dict.fromkeys"),
        ("return min(len(output)", "task.clear()\n        return min(len(output)"),
        ('line.split("|")', 'line.split("|", 1)[::-1]'),
        (
            "scale_by_std: bool = False",
            "scale_by_std: bool = False\n\n    def problems(self):\n        yield (), 'wrong'",
        ),
    ):
        assert sound in source
        source = source.replace(sound, broken)
    (elsewhere / "areal_wrong.py").write_text(source)
    points = POINTS.replace("areal_echo:", "areal_wrong:")
    done = run(elsewhere, *CONTRACT, *PARTS, points=points)
    assert done.returncode == 1, done.stdout + done.stderr
    for failed in (
        "test_engine_keeps_its_contract[echo-a_completion_cut_anywhere_continues_as_if_it_had_not_been]",
        "test_tool_format_keeps_its_contract[arrows-an_example_reads_as_its_call]",
        "test_tracker_keeps_its_contract[lines-what_was_flushed_is_known_when_the_run_is_opened_again]",
        "test_reward_keeps_its_contract[brevity-the_task_stays_as_it_is]",
        "test_reader_keeps_its_contract[.rows-the_rows_are_those_of_the_file]",
        "test_algorithm_keeps_its_contract[centered-its_table_contradicts_nothing]",
    ):
        assert failed in done.stdout.partition("short test summary")[2], done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_run_with_parts_of_another_distribution_alone(elsewhere):
    done = areal(elsewhere, "run", "recipe.toml")
    assert "audit: 0 lost, 0 twice" in done
    steps = [json.loads(line) for line in (elsewhere / "runs/echo/lines.jsonl").read_text().splitlines()]
    assert {row["step"] for row in steps} >= {1, 2}
    assert any(row["metrics"].get("reward_mean", 0.0) > 0 for row in steps)
