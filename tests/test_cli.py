import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from areal_actors.cli import arguments_of, main
from areal_actors.cli.arguments import parse_command_line
from areal_actors.cli.find_commands import command_modules, load_command
from areal_actors.cli.other_names import EARLIER_NAMES

ROOT = Path(__file__).parent.parent
RECIPE = "recipes/gsm8k_grpo.toml"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_check_in_full_prints_recipe_profile_tree_and_plan_in_the_same_words_every_time(capsys):
    assert main(["check", RECIPE, "profile=embedded", "--static", "--full"]) == 0
    first = capsys.readouterr().out
    assert main(["check", RECIPE, "--set", "profile=embedded", "--static", "--full"]) == 0
    assert capsys.readouterr().out == first
    for part in (
        'model           = "embedded"',
        "# embedded: named by override `profile=embedded`",
        "#     trainer ×1",
        "# episodes    40 steps",
    ):
        assert part in first


def test_check_prints_changed_settings_with_those_of_the_command_line_marked_and_the_plan(capsys):
    assert main(["check", RECIPE, "profile=embedded", "steps=7", "--trainer.optimizer.lr", "0.001"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    text = "\n".join(lines)
    for part in (
        'run = "gsm8k-grpo", *steps = 7, model = "embedded"',
        "# trainer     *optimizer.lr = 0.001",
        "# profile     embedded: named by override `profile=embedded`",
        "# processes   6, besides this one and nats-server: control, gateway,",
        "# task arithmetic-train-1241 with the answer 'I do not know.': reward 0",
    ):
        assert part in text
    assert "clip" not in text, "a setting with its default"


@pytest.mark.parametrize("recipe", ["self_play", "two_policies", "mixture", "customer_service", "coding_agent"])
def test_what_check_prints_of_a_large_recipe_fits_40_lines_with_its_rehearsal(capsys, recipe):
    assert main(["check", recipe, "--static"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 36


def test_check_starts_and_writes_nothing(capsys, tmp_path):
    assert main(["check", RECIPE, "profile=embedded", f"folder={tmp_path}", "--static"]) == 0
    assert str(tmp_path) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_check_can_answer_in_json(capsys):
    assert main(["check", RECIPE, "profile=embedded", "steps=2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["recipe"]["steps"], answer["profile"], answer["recipe"]["algorithm"]["name"]) == (
        2,
        "embedded",
        "grpo",
    )


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            [RECIPE, "profile=embedded", "staleness_gate.max_stalness=1"],
            "override `staleness_gate.max_stalness=1`: `staleness_gate.max_stalness` is",
        ),
        (["recipes/gsm8k_gpro.toml"], "recipes/gsm8k_gpro.toml: no such file; did you mean recipes/gsm8k_grpo.toml?"),
        (["recipes/zzz"], "recipes/zzz: no such file; recipes in recipes: anthropic.toml, "),
        (["gsm8k_gpro"], "gsm8k_gpro: no such file; did you mean gsm8k_grpo?"),
        ([RECIPE, "--stepz", "10"], "override `stepz=10`: `stepz` is not a setting; did you mean `steps`?"),
        (
            ["recipes/ppo.toml"],
            "recipes/ppo.toml: `steps` is missing; write `steps = …` at the top; or, if this file overrides another",
        ),
        (["steps=3"], "found no recipe among the arguments"),
        (["recipes"], "recipes: cannot be read: Is a directory"),
    ],
)
def test_a_wrong_recipe_ends_with_status_2_and_what_to_write(capsys, command, words, complaint):
    assert main([command, *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(complaint)
    assert captured.out == ""


def test_settings_behind_an_option_count(capsys):
    assert main(["check", "--json", str(RECIPE), "steps=3"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["steps"] == 3
    with pytest.raises(SystemExit):
        main(["check", str(RECIPE), "--jsom", "steps=3"])
    assert "unrecognized arguments: --jsom without a value; did you mean --json?" in capsys.readouterr().err
    assert main(["audit", "mine", "steps=3"]) == 2
    assert "found the setting steps=3; only --replay takes settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--steps", "3", "--seed", "7", "--batcher.exit-policy", "drop"],
        ["--steps=3", "--set", "seed=7", "batcher.exit_policy=drop"],
    ],
)
def test_a_setting_is_also_an_option_before_or_behind_the_recipe(capsys, words):
    for arguments in ([*words, RECIPE], [RECIPE, *words]):
        assert main(["check", *arguments, "--json"]) == 0
        recipe = json.loads(capsys.readouterr().out)["recipe"]
        assert (recipe["steps"], recipe["seed"], recipe["batcher"]["exit_policy"]) == (3, 7, "drop")


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("trian", "no command `trian`; did you mean `areal-actors run`?"),
        ("serv", "did you mean `areal-actors serve`?"),
        ("ls", "did you mean `areal-actors runs`?"),
        ("zzz", "no command `zzz`; commands: audit, check, compare, doctor, "),
        ("mine.toml", "write `areal-actors run mine.toml`"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(capsys, word, complaint):
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["runs"], ["audit", "--replay"], ["show", "--at", "end"], ["what-if"], ["show", "mine", "0.1", "--trace"],
        ["why"], ["export", "mine", "log.xz"], ["audit"], ["audit", "step-20", "--verify"],
        ["export", "mine", "owner/name", "--hub"], ["doctor"], ["serve", "promote"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_option_of_a_command_is_a_parameter_of_its_function_and_no_parameter_is_missing(words):
    options = parse_command_line(words)
    module, _, name = options.do.partition(":")
    function = getattr(importlib.import_module(f"areal_actors.{module}"), name)
    given = arguments_of(function, options)
    inspect.signature(function).bind(**given)
    if isinstance(load_command(words[0]).do, str):
        assert vars(options).keys() - given.keys() <= {"do", "words", "settings_of_run"}


def test_a_word_too_many_is_refused(capsys):
    for command in ("audit", "what-if", "resume"):
        assert main([command, "first", "second", "steps=3"]) == 2
        assert (
            "found 2 runs, first and second; name one run or exported log, and settings as KEY=VALUE"
            in capsys.readouterr().err
        )


def test_help_loads_no_module_of_a_command():
    heavy = (
        "('areal_actors.recipe', 'areal_actors.reader', 'areal_actors.folder', 'matplotlib', 'aiohttp', 'torch',"
        " 'transformers', 'rich')"
    )
    for words in (["--help"], ["run", "--help"], ["compare", "--help"]):
        program = f"""
import sys
from areal_actors.cli import main
try:
    main({words})
except SystemExit as ended:
    sys.stderr.write(" ".join(name for name in {heavy} if name in sys.modules))
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True, cwd=ROOT
        )
        assert "usage: areal-actors" in done.stdout
        assert done.stderr == ""


@pytest.mark.parametrize(
    "words",
    [["runs"], ["check", RECIPE, "profile=embedded", "--static"], ["explain", "steps"]],
    ids=lambda words: words[0],
)
def test_commands_that_read_settings_or_lists_load_none_of_what_a_run_needs(words, tmp_path):
    (tmp_path / "runs").mkdir()
    heavy = [
        "numpy",
        "jinja2",
        "tokenizers",
        "aiohttp",
        "nats",
        "prometheus_client",
        "structlog",
        "matplotlib",
        "torch",
    ]
    program = f"""
import os, sys
from areal_actors.cli import main
os.chdir({str(tmp_path)!r})
main({[str(ROOT / word) if word == RECIPE else word for word in words]})
sys.stderr.write(" ".join(name for name in {heavy} if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True, cwd=ROOT
    )
    assert done.stdout
    assert done.stderr == ""


def test_a_shipped_recipe_is_found_by_its_name_in_any_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gsm8k_grpo", "recipes/gsm8k_grpo.toml"):
        assert main(["check", name, "profile=embedded", "--static"]) == 0
        assert f'agent = "{ROOT / "agents/gsm8k.py"}:Gsm8kAgent"' in capsys.readouterr().out


def test_a_recipe_is_found_from_the_folder_where_the_command_was_typed(capsys, tmp_path):
    (tmp_path / "small.toml").write_text("steps = 5\n")
    assert main(["check", RECIPE, "small.toml", "profile=embedded", "--from", str(tmp_path), "--static"]) == 0
    assert "steps = 5, " in capsys.readouterr().out


@pytest.mark.parametrize("command", command_modules())
def test_the_help_of_every_command_fits_80_columns(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: areal-actors {command} ")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("earlier", "present"),
    [
        ("trace mine 0.1 --html page.html", "show mine 0.1 --trace --html page.html"),
        ("state mine --at step-3", "show mine --at step-3"),
        ("state", "show --at end"),
        ("replay mine steps=3 --actor batcher --all", "audit mine --replay steps=3 --actor batcher --all"),
        ("replay --trainer", "audit --replay --recompute"),
        ("verify runs/mine/checkpoints/step-3 --steps 1", "audit runs/mine/checkpoints/step-3 --verify --steps 1"),
        ("push mine owner/name --private", "export mine owner/name --hub --private"),
        ("track mine --to wandb --once", "export mine --to wandb --once"),
        ("track --otlp http://here", "export --otlp http://here"),
        ("monitor mine trajectory.> --json", "view mine trajectory.> --json --terminal"),
        ("monitor mine --web --port 1", "view mine --port 1 --web --terminal"),
        ("launch mine.toml --on slurm --dry-run", "run mine.toml --on slurm --dry-run"),
        ("gateway --engine http://here", "serve gateway --engine http://here"),
        ("tinker --port 0", "serve tinker --port 0"),
        ("promote mine --rollback", "serve promote mine --rollback"),
    ],
)
def test_an_earlier_name_does_the_same_and_names_the_present_one(capsys, earlier, present):
    options = parse_command_line(earlier.split())
    assert capsys.readouterr().err.startswith(f"`areal-actors {earlier.split()[0]}` is now `areal-actors ")
    assert options == parse_command_line(present.split())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("show mine --trace", "--trace needs a run and an episode, as in"),
        ("show mine 0.1 --trace --tokens", "--tokens has no effect with --trace; leave it out"),
        ("show mine 0.1 --at 12", "--at is about a whole run; leave 0.1 out"),
        ("audit --verify", "--verify: name the folder of a checkpoint"),
        ("audit mine --actor gate", "--actor has no effect without --replay and --verify"),
        ("export", "found 0 words; write `areal-actors export RUN FILE`"),
        ("export mine here.xz --to wandb", "found here.xz behind the run"),
        ("export mine owner/name --hub --sft", "--sft has no effect with --hub"),
        ("view mine --terminal --port 1", "--port has no effect in the terminal"),
        ("run recipes/gsm8k_grpo.toml --dry-run", "--dry-run has no effect without --on"),
    ],
)
def test_an_option_without_effect_is_refused(capsys, words, complaint):
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(complaint)


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "areal_actors", "--version"], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.startswith("areal-actors ")


def test_the_help_has_at_most_20_commands_in_five_groups(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    names = [name for name in command_modules() if " " not in name]
    assert len(names) <= 20
    assert all(f"\n    {name} " in text for name in names)
    assert not any(f"\n    {name} " in text for name in EARLIER_NAMES)
    assert max(map(len, text.splitlines())) <= 80
    assert len(re.findall(r"^\w.*:$", text, re.MULTILINE)) == 5 + len(["options:"])


def test_a_name_with_commands_below_it_names_them(capsys):
    for words, complaint in ((["model"], "found no word behind `model`"), (["model", "git"], "found git behind")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert complaint in (error := capsys.readouterr().err)
        assert "`areal-actors model get`" in error


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("sh", "show "),
        ("serve ti", "tinker"),
        ("show min", "mine "),
        ("run gsm8k_g", "gsm8k_grpo"),
        ("run gsm8k_grpo trainer.microbatch_tok", "trainer.microbatch_tokens="),
        ("audit --reco", "--recompute "),
    ],
)
def test_a_shell_completes_commands_options_runs_recipes_and_settings(tmp_path, typed, found):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.json").write_text("{}")
    line, file = f"areal-actors {typed}", tmp_path / "answer"
    shell = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": file}
    subprocess.run(
        [sys.executable, "-m", "areal_actors"], cwd=tmp_path, env=os.environ | shell, timeout=300, check=True
    )
    assert found.strip() in re.split(r"[\v\s]+", file.read_text())


def test_every_shell_accepts_its_completion(capsys):
    for shell in ("bash", "zsh", "fish"):
        with pytest.raises(SystemExit) as ended:
            main(["--completion", shell])
        assert ended.value.code == 0
        code = capsys.readouterr().out
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=code, text=True, check=True)
    with pytest.raises(SystemExit):
        main(["--completion", "csh"])
    assert "found 'csh'; write bash, zsh or fish" in capsys.readouterr().err
