"""Every benchmark runs with `--quick`, as from the command line; it prints its table and leaves no files; so does the
first hour."""

import importlib
import io
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
GPU = FOLDER / "gpu"
SECTIONS = ["machine", "model", "parity", "decode", "trainer", "weights", "loop"]
FIND = runpy.run_path(str(FOLDER / "bench.py"))["benchmarks"]
BENCHMARKS, ARCHIVED = FIND(), FIND(FOLDER / "archive")
KEPT = ("areal-benchmark-tokenizer-", "torchinductor_")
"""Beginnings of names in the folder for temporary files that stay there for the next time."""
LONGEST_SECONDS = 600.0
"""Time limit of a benchmark that takes seconds on an idle machine."""


def test_all_benchmarks_are_found():
    assert {"orchestration", "gateway", "async_vs_sync", "engine", "determinism", "rewards"} <= set(BENCHMARKS)
    helpers = {path.stem for path in FOLDER.glob("*.py")} - set(BENCHMARKS)
    assert {"bench", "history", "orchestration_process", "gateway_load"} <= helpers


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 60)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_quickly_and_keeps_nothing(name, tmp_path):
    before = (FOLDER / "history.jsonl").read_bytes()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--quick"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + ended.stdout[-4000:]
    assert any(character.isdigit() for character in ended.stdout), ended.stdout
    assert (FOLDER / "history.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(KEPT)] == [], (
        "what a benchmark writes it cleans up"
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ARCHIVED)
def test_a_benchmark_of_the_archive_can_still_be_started(name):
    program, environment = FOLDER / "archive" / f"{name}.py", {**os.environ, "PYTHONPATH": str(FOLDER)}
    ended = subprocess.run(
        [sys.executable, str(program), "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert f"benchmarks/archive/{name}.py" in ended.stdout


# ------------------------------------------------------------ the first hour on a GPU


def first_hour(folder, *words, **variables):
    """Its exit status, its output, and its sections by name."""
    folder.mkdir(exist_ok=True)
    file = folder.parent / "figures.json"
    ended = subprocess.run(
        [sys.executable, str(GPU / "first_hour.py"), "--tiny", "--json", str(file), *words],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS + 30,
        check=False,
    )
    assert [path.name for path in folder.iterdir() if not path.name.startswith(KEPT)] == [], "it removes its folders"
    return (
        ended.returncode,
        ended.stdout + ended.stderr,
        {each["name"]: each for each in json.loads(file.read_text())["sections"]},
    )


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 60)
def test_the_first_hour_has_figures_of_every_section(tmp_path):
    status, output, sections = first_hour(tmp_path / "work", "--device", "cpu")
    assert status == 0, output
    assert list(sections) == SECTIONS
    for name, section in sections.items():
        assert section["status"] == "ok", output
        assert section["cases"], name
        assert section["peak_bytes"]["resident"] > 2**20, name
        assert f"== {name} " in output
    rows = {name: section["cases"] for name, section in sections.items()}
    assert {(row["case"], row["pair"]) for row in rows["parity"]} >= {
        ("float32", "engine - trainer"),
        ("bfloat16", "engine - trainer"),
    }
    assert all(row["max_difference"] < {"float32": 1e-3, "bfloat16": 0.3}[row["case"]] for row in rows["parity"])
    assert [row["decoder"] for row in rows["decode"] if "decoder" in row] == ["generate", "engine"] * 2
    computed = {row["case"]: row["computed_tokens"] for row in rows["trainer"] if "computed_tokens" in row}
    assert computed["prefix_sharing=on"] < computed["prefix_sharing=off"]
    differences = [row["max_difference"] for row in rows["trainer"] if "max_difference" in row]
    assert differences
    assert max(differences) < 1e-3
    assert rows["weights"][0]["bytes"] > 0
    assert [(row["exit_status"], row["steps"]) for row in rows["loop"]] == [(0, 5)]


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 60)
def test_the_first_hour_without_the_wanted_device_fails_in_each_section_by_itself(tmp_path):
    words = ("--device", "cuda", "--only", "machine,weights")
    status, output, sections = first_hour(tmp_path / "work", *words, CUDA_VISIBLE_DEVICES="")
    assert status == 1, output
    assert {name: section["status"] for name, section in sections.items()} == dict.fromkeys(
        ("machine", "model", "weights"), "failed"
    )
    assert "versions" in [row["case"] for row in sections["machine"]["cases"]], (
        "the other cases of a section are measured"
    )
    for section in sections.values():
        assert all("Traceback" in error["traceback"] for error in section["errors"]), section


SECTION_MODULES = {
    "hangs": (
        "import time\ndef measure(report, options):\n    report.case('first', lambda: [{'figure': 1}])\n   "
        " time.sleep(600)"
    ),
    "raises": (
        "def measure(report, options):\n    report.case('first', lambda: 1 / 0)\n    report.case('second', lambda:"
        " [{'figure': 1}])"
    ),
    "crashes": (
        "import os\ndef measure(report, options):\n    print('last line', flush=True)\n    os.kill(os.getpid(), 9)"
    ),
    "lacks": "import a_package_that_is_not_installed",
    "works": "def measure(report, options):\n    report.case('only', lambda: [{'figure': 2}])",
}


def test_sections_that_raise_crash_or_hang_do_not_affect_the_others(tmp_path, monkeypatch):
    for name, text in SECTION_MODULES.items():
        (tmp_path / f"section_{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.syspath_prepend(GPU)
    run_sections, options = importlib.import_module("run_sections"), importlib.import_module("options")
    asked = options.Options(device="cpu", tiny=True, folder=str(tmp_path), shared=str(tmp_path), deadline=0.0)
    shown = []
    began = time.monotonic()
    outcomes = run_sections.run_sections(
        [run_sections.Section(name, 10.0) for name in SECTION_MODULES],
        asked,
        50.0,
        lambda outcome, what: shown.append(what),
    )
    for name in ("run_sections", "options"):
        sys.modules.pop(name)
    found = {outcome.name: outcome for outcome in outcomes}
    assert {name: outcome.status for name, outcome in found.items()} == {
        **dict.fromkeys(("raises", "crashes", "lacks"), "failed"),
        **dict.fromkeys(("hangs", "works"), "ok"),
    }
    assert "ZeroDivisionError" in found["raises"].errors[0]["traceback"]
    assert found["raises"].cases == [{"case": "second", "figure": 1}]
    assert "last line" in found["crashes"].errors[0]["traceback"]
    assert "stopped at the limit" in found["hangs"].skipped[0]["reason"]
    assert "time.sleep" in found["hangs"].skipped[0]["output"] or "section_hangs" in found["hangs"].skipped[0]["output"]
    assert "a_package_that_is_not_installed" in found["lacks"].errors[0]["error"]
    assert found["works"].cases == [{"case": "only", "figure": 2}]
    assert shown.count("ended") == len(SECTION_MODULES)
    assert time.monotonic() - began < 300


def test_sections_and_cases_without_time_are_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(GPU)
    modules = {name: importlib.import_module(name) for name in ("run_sections", "options", "report", "printing")}
    asked = modules["options"].Options(
        device="cpu", tiny=True, folder=str(tmp_path), shared=str(tmp_path), deadline=0.0
    )
    lines, events = [], io.StringIO()
    sections = [modules["run_sections"].Section(name, 1.0) for name in ("machine", "loop")]
    outcomes = modules["run_sections"].run_sections(
        sections, asked, 4.0, modules["printing"].Printer(lines.append).show
    )
    report = modules["report"].Report(events, time.time() + 0.3)
    assert report.case("long", lambda: [time.sleep(0.2) or {"figure": 1}])
    assert not report.case("next", lambda: [{"figure": 2}])
    for name in modules:
        sys.modules.pop(name)
    assert [outcome.status for outcome in outcomes] == ["skipped", "skipped"]
    assert "skipped: loop: 4 s left of 4 s" in lines
    assert [json.loads(line)["event"] for line in events.getvalue().splitlines()] == ["figures", "skipped"]
