"""Files that `areal-actors run --on` writes, and recipes that it refuses; tests/test_launch_run.py starts what is
written."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.live_run import RECIPE, ROOT

from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices, pretended_cuda
from areal_actors.core.errors import SetupError
from areal_actors.core.host_settings import JOIN_TOKEN
from areal_actors.hosts.launchers.local import local_commands
from areal_actors.hosts.launchers.plan import LaunchPlan, launch_plan
from areal_actors.recipe.load import load
from areal_actors.supervision.nats_server import fixed_token
from areal_actors.supervision.supervisor import child_environment

LAUNCHERS = ROOT / ".environments" / "launchers" / "bin" / "python"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
HOSTS = (
    *("hosts.rollout_worker.count=3", "hosts.rollout_worker.workers=2", "hosts.rollout_worker.cpus=8"),
    *("hosts.inference_worker.count=2", "hosts.inference_worker.memory_gb=3", "hosts.inference_worker.cpus=2"),
    *("hosts.image=registry/areal:1", "hosts.run.memory_gb=16"),
)
NO_CUDA = CudaDevices(0, "no CUDA device")


def written(capsys: pytest.CaptureFixture[str], target: str, *settings: str, recipe: str = str(RECIPE)) -> str:
    assert main(["run", recipe, "--on", target, "--dry-run", *settings]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) in (1, 2)
    return capsys.readouterr().err


def plan(*settings: str, cuda: CudaDevices = NO_CUDA) -> LaunchPlan:
    resolved = load([RECIPE], ["profile=embedded", *settings], cuda)
    return launch_plan(resolved.recipe, [str(RECIPE), *settings], resolved.profile)


GROWING = ("autoscale.enabled=true", "autoscale.rollout_worker.max=9")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        HOSTS,
        GROWING,
        (*HOSTS, *GROWING),
        ("bus.tls=true", *HOSTS, *GROWING),
        (*HOSTS, "bus.port=7000", 'hosts.slurm=["--partition=gpu", "--time=1:00"]'),
    ],
)
def test_the_batch_script_is_sound_shell(capsys, tmp_path, settings):
    script = written(capsys, "slurm", *settings)
    file = tmp_path / "run.sh"
    file.write_text(script)
    checked = subprocess.run(
        [SHELLCHECK, "--enable=all", "--exclude=SC2250,SC2312", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_batch_script_asks_for_what_the_hosts_need(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = written(
        capsys,
        "slurm",
        *HOSTS,
        "hosts.run.gpus=1",
        "model=embedded",
        'hosts.slurm=["--partition=gpu"]',
        "bus.port=7000",
    )
    parts = [
        [line for line in part.splitlines() if line.startswith("#SBATCH")] for part in script.split("#SBATCH hetjob\n")
    ]
    assert [line.split("=")[1] for part in parts for line in part if "--ntasks" in line] == ["1", "2", "3"]
    assert all("#SBATCH --partition=gpu" in part for part in parts)
    assert f'#SBATCH --chdir="{ROOT}"' in parts[0]
    assert "#SBATCH --gpus-per-task=1" in parts[0]
    assert "#SBATCH --mem-per-cpu=4096M" in parts[0]
    assert "#SBATCH --mem-per-cpu=1536M" in parts[1]
    assert "#SBATCH --cpus-per-task=8" in parts[2]
    assert "bus_port=7000\n" in script
    assert "profile=cuda" in script  # the run's host has a GPU, this machine may have none
    assert "actors.rollout_worker.count=0 " in script
    assert "actors.inference_worker.count=0 " in script
    assert "actors.reward_worker.count" not in script


def test_a_run_leaves_as_many_gateways_to_other_hosts_as_the_plan_has():
    two = plan("hosts.gateway.count=2")
    assert two.run.words[-2:] == ("gateway.joined=2", "actors.session_manager.count=2")
    assert [(place.name, place.count, place.words[:4]) for place in two.joined] == [
        ("gateway", 2, ("--role", "gateway", "--count", "1"))
    ]
    three = plan("hosts.gateway.count=1", "hosts.gateway.workers=2", "actors.session_manager.count=3")
    assert three.run.words[-2:] == ("gateway.joined=2", "actors.session_manager.count=3")


def test_the_address_of_a_proxy_stays(capsys):
    assert "gateway.advertise=$head" in written(capsys, "slurm")
    assert "gateway.advertise=$head" not in written(capsys, "slurm", "gateway.advertise=http://proxy:80")


def test_words_are_quoted_for_the_shell(capsys):
    script = written(capsys, "slurm", "run=a-b", 'task.columns={ question = "it\'s $HOME" }')
    words = shlex.split(script.split("areal_actors run ")[1].split("\\\n")[0])
    assert 'task.columns={ question = "it\'s $HOME" }' in words


def manifests(
    capsys: pytest.CaptureFixture[str], *settings: str, recipe: str = str(RECIPE)
) -> dict[tuple[str, str], dict]:
    text = written(capsys, "kubernetes", *settings, recipe=recipe)
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


@pytest.mark.skipif(
    not LAUNCHERS.exists(), reason="`just environments launchers` makes the interpreter that this needs"
)
@pytest.mark.parametrize(
    "settings",
    [
        ("hosts.image=areal",),
        (*HOSTS, "hosts.run.gpus=1", "model=embedded", "hosts.reward_worker.count=1", "hosts.gateway.count=2"),
        (*HOSTS, *GROWING, "autoscale.rollout_worker.max=9", "autoscale.reward_worker.max=2"),
    ],
)
def test_the_manifests_have_the_form_of_kubernetes(capsys, monkeypatch, tmp_path, settings):
    monkeypatch.chdir(ROOT)
    found = manifests(capsys, *settings)
    program = (
        "import json, sys, kubernetes_validate\n"
        "for one in json.load(sys.stdin):\n"
        "    for version in ('1.31', '1.37'):\n"
        "        kubernetes_validate.validate(one, version, strict=True)\n"
    )
    command = [LAUNCHERS, "-c", program]
    checked = subprocess.run(
        command, input=json.dumps(list(found.values())), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    next(iter(found.values()))["spec"] = {}
    checked = subprocess.run(
        command, input=json.dumps(list(found.values())), capture_output=True, text=True, check=False
    )
    assert "ValidationError" in checked.stderr  # the validator finds what is wrong


def test_the_manifests_give_the_pods_what_they_need(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    proxy = "gateway.advertise=http://proxy:80"
    found = manifests(capsys, *HOSTS, "gateway.port=9000", proxy, recipe="recipes/gsm8k_grpo.toml")
    run, workers = (found["Job", f"areal-gsm8k-grpo-{name}"]["spec"] for name in ("run", "rollout-worker"))
    assert (workers["parallelism"], workers["completions"], workers["backoffLimit"], run["backoffLimit"]) == (
        3,
        3,
        2,
        0,
    )
    main_pod, worker = run["template"]["spec"]["containers"][0], workers["template"]["spec"]["containers"][0]
    assert worker["command"][:3] == ["areal-actors", "join", "nats://areal-gsm8k-grpo-run:4222/gsm8k-grpo"]
    assert worker["command"][3:] == ["--role", "rollout_worker", "--count", "2", "--wait", "900"]
    assert worker["resources"]["requests"]["cpu"] == "8"
    assert main_pod["resources"]["limits"] == {"memory": "16Gi"}
    ports = {port["name"]: port["port"] for port in found["Service", "areal-gsm8k-grpo-run"]["spec"]["ports"]}
    assert ports == {"bus": 4222, "objects": 4280, "gateway": 9000}
    assert {"bus.port=4222", "bus.objects_port=4280", "gateway.port=9000", "folder=/runs", proxy} <= set(
        main_pod["command"]
    )
    for pod in (main_pod, worker):
        assert pod["env"][0]["name"] == JOIN_TOKEN
        assert pod["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "areal-gsm8k-grpo-join"
    token = found["Secret", "areal-gsm8k-grpo-join"]["stringData"]["token"]
    assert len(token) == 32
    assert token not in json.dumps([one for (kind, _), one in found.items() if kind != "Secret"])


def mounted(found: dict[tuple[str, str], dict], folder: Path) -> list[str]:
    """The command of the run's container, with the files that it finds written to a folder."""
    pod = next(one for (kind, name), one in found.items() if kind == "Job" and name.endswith("-run"))["spec"][
        "template"
    ]["spec"]
    contents = next(one["data"] for (kind, _), one in found.items() if kind == "ConfigMap")
    for item in next(volume["configMap"]["items"] for volume in pod["volumes"] if volume["name"] == "recipe"):
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[item["key"]])
    return list(pod["containers"][0]["command"])


def test_the_pod_of_the_run_has_recipe_agent_and_tasks(capsys, tmp_path, monkeypatch):
    home, there = tmp_path / "home", tmp_path / "there"
    home.mkdir()
    monkeypatch.chdir(home)
    assert main(["init", "mine"]) == 0
    capsys.readouterr()
    command = mounted(manifests(capsys, "hosts.image=areal", recipe="mine/recipe.toml"), there)
    assert command[:3] == ["areal-actors", "run", "mine/recipe.toml"]
    assert {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()} >= {
        "mine/recipe.toml",
        "mine/agent.py",
        "mine/tasks.jsonl",
    }
    monkeypatch.chdir(there)
    settings = [word for word in command[3:] if not word.startswith("folder=")]
    assert main(["check", "--static", *command[2:3], *settings]) == 0


def test_a_recipe_of_the_package_is_that_of_the_image(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = manifests(capsys, "hosts.image=areal", recipe="gsm8k_grpo")
    assert mounted(found, tmp_path / "there")[2] == "gsm8k_grpo"
    assert next(one for (kind, _), one in found.items() if kind == "ConfigMap")["data"] == {}


def test_the_ray_program_is_python(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = written(capsys, "ray", *HOSTS)
    ast.parse(text)
    file = tmp_path / "program.py"
    file.write_text(text)
    names = {
        target.id: one.value for one in ast.parse(text).body if isinstance(one, ast.Assign) for target in one.targets
    }
    assert ast.literal_eval(names["RUN_NEEDS"]) == {"num_cpus": 4, "num_gpus": 0, "memory": 16 << 30}
    assert [(count, needs["num_cpus"]) for count, needs, _ in ast.literal_eval(names["JOINED"])] == [(2, 2), (3, 8)]
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select=E9,F", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_the_ray_program_follows_decisions_if_they_may_add_hosts(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    scaled = (
        "autoscale.enabled=true",
        "autoscale.rollout_worker.max=9",
        "hosts.rollout_worker.count=1",
        "hosts.rollout_worker.cpus=3",
    )
    text = written(capsys, "ray", *scaled)
    names = {
        target.id: one.value for one in ast.parse(text).body if isinstance(one, ast.Assign) for target in one.targets
    }
    assert ast.literal_eval(names["ADDED"]) == {
        "rollout_worker": ({"num_cpus": 3, "num_gpus": 0}, ["--role", "rollout_worker", "--wait", "900"])
    }
    assert ast.literal_eval(names["FOLLOW_COMMAND"])[-3:] == ["--on", "ray", "--follow"]
    (tmp_path / "program.py").write_text(text)
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select=E9,F", tmp_path], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert "FOLLOW_COMMAND" not in written(capsys, "ray", *scaled, "autoscale.enabled=false")


@pytest.mark.parametrize(("target", "suffix"), [("slurm", ".sbatch"), ("kubernetes", ".yaml"), ("ray", "-ray.py")])
def test_files_are_written_for_their_user_only_and_the_command_is_printed(capsys, tmp_path, target, suffix):
    assert main(
        ["run", str(RECIPE), "--on", target, "--output", str(tmp_path / "out"), *HOSTS, "--from", str(ROOT)]
    ) in (0, 1)
    capsys.readouterr()
    assert main(["run", "gsm8k_grpo", "--on", target, "--output", str(tmp_path / "out"), *HOSTS]) == 0
    file = tmp_path / "out" / f"gsm8k-grpo{suffix}"
    assert file.stat().st_mode & 0o777 == 0o600
    printed = capsys.readouterr().out
    assert (
        "3 × rollout_worker: 8 CPU cores: areal-actors join ADDRESS --role rollout_worker --count 2 --wait 900"
        in printed
    )
    assert str(file) in printed.splitlines()[-1]


def test_gpus_of_this_machine_are_given_out_in_order(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda = pretended_cuda("4")
    hosts = ("model=embedded", "hosts.run.gpus=2", "hosts.inference_worker.count=2", "hosts.inference_worker.gpus=1")
    run, *joined = local_commands(plan(*hosts, "hosts.rollout_worker.count=1", cuda=cuda), cuda)
    assert [command.gpus for command in (run, *joined)] == [(0, 1), (2,), (3,), ()]
    assert joined[1].shell_line().startswith("CUDA_VISIBLE_DEVICES=3 areal-actors join nats://127.0.0.1:")
    with pytest.raises(SetupError, match=r"asks for 4 GPUs, and this machine has 1"):
        local_commands(plan(*hosts, cuda=cuda), pretended_cuda("1"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("hosts.rollout_workers.count=2",), "`hosts.rollout_workers`"),
        (("hosts.rollout_worker.count=-1",), "`hosts.rollout_worker.count`: found -1"),
        (
            ("hosts.inference_worker.count=1", "hosts.inference_worker.gpus=2"),
            "generation.tensor_parallel = 1; write gpus = 1",
        ),
        (
            ("hosts.inference_worker.count=1", "hosts.inference_worker.gpus=1", "hosts.inference_worker.workers=2"),
            "`hosts.inference_worker.workers`: found 2, but workers of one host would all take its first GPU; write 1",
        ),
        (
            ("hosts.rollout_worker.count=1", "task.agent=online", "task.reward="),
            "this run has no rollout_worker; write 0",
        ),
        (("hosts.rollout_worker.count=1", "bus.url=nats://u:secret@h:1"), '`bus.url`: found "nats://h:1"'),
        (('hosts.slurm=["-p gpu"]',), '`hosts.slurm`: found "-p gpu"; write options of sbatch as `--name=value`'),
        (('hosts.slurm=["--ntasks=3"]',), "which the script sets itself"),
    ],
)
def test_a_recipe_with_hosts_that_cannot_be_is_refused(capsys, settings, complaint):
    assert complaint in refused(capsys, "check", "--static", str(RECIPE), *settings)


def test_what_a_target_cannot_do_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "`hosts.image`: found none" in refused(capsys, "run", "gsm8k_grpo", "--on", "kubernetes")
    assert "Kubernetes takes at most 40" in refused(
        capsys, "run", "gsm8k_grpo", "--on", "kubernetes", "hosts.image=a", f"run={'a' * 41}"
    )
    (tmp_path / "50%").mkdir()
    monkeypatch.chdir(tmp_path / "50%")
    assert "`--on local` has no use for it" in refused(capsys, "run", "gsm8k_grpo", "--on", "local", "--follow")
    assert "AREAL_JOIN_ADDRESS is not set" in refused(
        capsys, "run", "gsm8k_grpo", "--on", "slurm", "--follow", *GROWING
    )
    assert "lets no decision add a worker" in refused(capsys, "run", "gsm8k_grpo", "--on", "ray", "--follow")
    assert "sbatch does not read this name" in refused(capsys, "run", "gsm8k_grpo", "--on", "slurm")


def test_files_that_a_configmap_cannot_have_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ("run", "../mine/recipe.toml", "--on", "kubernetes", "hosts.image=areal")
    assert "start `areal-actors run --on` in a folder with the recipe and its agent" in refused(capsys, *words)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "large.py").write_text("#" * 1_000_000)
    words = ("run", "mine/recipe.toml", "--on", "kubernetes", "hosts.image=areal")
    assert "the largest is mine/large.py" in refused(capsys, *words)


@pytest.mark.parametrize("token", ["short", "with blank and 'quote'", "$2a$11$aaaaaaaaaaaaaaaaaaaaaaaa"])
def test_a_password_that_could_be_guessed_is_refused(monkeypatch, token):
    monkeypatch.setenv(JOIN_TOKEN, token)
    with pytest.raises(SetupError, match=rf"{JOIN_TOKEN}: found {len(token)} characters"):
        fixed_token()


def test_no_process_of_a_run_inherits_the_password(monkeypatch):
    monkeypatch.setenv(JOIN_TOKEN, "0123456789abcdef")
    assert fixed_token() == "0123456789abcdef"
    assert JOIN_TOKEN not in child_environment(plan().recipe, {"rollout_worker"})
