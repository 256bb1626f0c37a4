"""The live view fills a terminal of any size, is read without colour, and leaves the terminal as it found it."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys

import msgspec
import pytest
from rich.console import Console
from rich.screen import Screen
from support import story
from test_monitor import shown, unfinished_run, view_of

from areal_actors.display.fit import Chart, bar, plot
from areal_actors.display.fullscreen import full_screen, is_screen
from areal_actors.display.phases import Phases
from areal_actors.display.view import RunView
from areal_actors.display.warnings import attention
from areal_actors.folder.phase_times import keep_times, usual_times
from areal_actors.messages import (
    CheckpointCommitted,
    EngineStarting,
    RunFinished,
    RunStarted,
    RunStopping,
    StepCompleted,
    TrainerProgress,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe

PUBLISHED = WeightsPublished(weight_version=0, location=story.LOCATION)
LOADED = WeightsLoaded(worker="inference_worker-0", weight_version=0, checksum="")


def screen(view, columns, lines, **options):
    view.fills_screen = True
    console = Console(
        width=columns, height=lines, file=io.StringIO(), force_terminal=True, color_system=None, **options
    )
    console.print(Screen(view))
    return console.file.getvalue().splitlines()


def a_run():
    return view_of(*unfinished_run(), story.gate(), story.batcher(), story.trainer(busy=False))


@pytest.mark.parametrize(("columns", "lines"), [(60, 20), (80, 24), (100, 40), (160, 50), (200, 50), (20, 5)])
def test_it_has_exactly_the_lines_of_the_terminal(columns, lines):
    found = screen(a_run(), columns, lines)
    assert len(found) == lines
    assert {len(line) for line in found} == {columns}
    assert found[0].startswith("── areal-actors ·")


def test_what_matters_stays_on_a_small_screen_and_the_rest_is_counted():
    found = screen(a_run(), 60, 12)
    assert [line.split()[0] for line in found[1:4]] == ["step", "held", "40,"]
    assert found[-1].split()[1:] == ["more", "lines", "in", "a", "larger", "window"]
    assert screen(a_run(), 60, 12 + int(found[-1].split()[0]) - 1)[-1].strip() == "1 more line in a larger window"
    assert not any(line.startswith("process") for line in found)


def with_every_process():
    kinds = ("control", "gateway", "inference_worker", "reward_worker", "rollout_worker")
    others = [story.beat(f"{kind}-0", kind) for kind in kinds]
    return view_of(*unfinished_run(), story.gate(), story.batcher(), story.trainer(busy=True), *others)


def test_the_row_of_the_trainer_stays_where_others_leave():
    found = [line.split()[0] for line in screen(with_every_process(), 80, 18) if line.strip()]
    assert found[found.index("process") + 1] == "trainer"
    assert "rollout_worker" not in found
    assert "rollout_worker" in "".join(screen(with_every_process(), 80, 50))


def test_an_old_failure_leaves_a_small_screen():
    view = with_every_process()
    view.receive(story.abandoned())
    assert any(line.startswith("failures") for line in screen(view, 80, 15))
    view.receive(story.beat("control-0", "control", after=900.0))
    assert not any(line.startswith("failures") for line in screen(view, 80, 15))
    assert any(line.startswith("failures") for line in screen(view, 80, 40)), "a large screen has room for it"


def test_a_run_that_ends_early_names_what_it_waits_for():
    view = with_every_process()
    view.interrupted = "SIGINT: a checkpoint is saved, then the run ends"
    view.receive(story.sealed(RunStopping(reason="interrupted"), 401.0))
    assert "waits for the trainer: step 41, then its checkpoint" in shown(view)
    view.receive(story.trainer(busy=False, after=402.0))
    saved = CheckpointCommitted(step=40, folder="checkpoints/step-40", cursor=1)
    view.receive(story.sealed(saved, 403.0))
    assert "waits for the processes to end; the checkpoint of step 40 is saved" in shown(view)


def test_a_large_screen_draws_the_rewards_over_the_steps():
    found = [line.rstrip() for line in screen(a_run(), 160, 50)]
    (axis,) = [line for line in found if "reward of step 1" in line]
    assert axis.endswith(" 40")
    assert found[found.index(axis) - 1].startswith("      0 ███")
    assert not any("reward of step 1" in line for line in screen(a_run(), 80, 24))


def test_bars_differ_in_shape_not_in_colour():
    assert [bar(done, 10, 10) for done in (0, 3, 10, 12)] == ["░" * 10, "███░░░░░░░", "█" * 10, "█" * 10]
    assert bar(0, 0, 4) == "░░░░"
    assert "240/600  ████████░░░░░░░░░░░░" in shown(
        view_of(story.sealed(story.STARTED), story.warming(240)), 80
    ).replace("600 ", "600  ")


def test_a_chart_stands_on_zero_and_averages_what_is_too_long():
    assert plot(Chart("reward", [0.5, 1.0]), 12, 3) == ["      1   ██", "      0 ████", "        reward of step 1 2"]
    assert plot(Chart("reward", [-1.0, 1.0]), 12, 3)[:2] == ["      1   ██", "     -1   ██"]
    assert len(plot(Chart("loss", list(range(1000))), 108, 5)[0]) == 108
    assert plot(Chart("loss", [0.0, 0.0]), 12, 2)[0] == "      0"


def test_an_encoding_without_bars_gets_letters_that_it_has():
    console = Console(
        width=80, file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True, color_system=None
    )
    console.print(a_run())
    console.file.seek(0)
    assert "40/40  ####################" in console.file.read()


def test_no_screen_is_drawn_where_there_is_none(monkeypatch):
    for name, drawn in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", name)
        assert is_screen(Console(file=io.StringIO(), force_terminal=True)) is drawn
    assert not is_screen(Console(file=io.StringIO()))


async def test_the_ordinary_screen_comes_back_with_what_was_written_to_standard_error(capsys):
    console, view = Console(file=io.StringIO(), force_terminal=True, width=80, height=24), a_run()
    logging.getLogger().handlers[:] = [logging.StreamHandler(sys.stderr)]
    async with full_screen(view, console):
        logging.getLogger().warning("\x1b[31mthe disk is slow\x1b[0m")
        await asyncio.sleep(0)
        assert view.notices == ["the disk is slow"]
        assert capsys.readouterr().err == ""
    assert "the disk is slow" in capsys.readouterr().err
    written = console.file.getvalue()
    assert written.index("\x1b[?1049h") < written.index("areal-actors") < written.index("\x1b[?1049l")
    assert "messages   the disk is slow" in "\n".join(screen(view, 80, 40))


def test_a_signal_is_answered_before_the_log_has_it():
    view = a_run()
    view.interrupted = "Ctrl-C: a checkpoint is saved, then the run ends"
    assert any(line.startswith("stopping   Ctrl-C: a checkpoint is saved") for line in screen(view, 60, 20))


# ---------------------------------------------------------------- phases


def phases_of(*messages, usual=None):
    phases = Phases(usual or {})
    for message, after in messages:
        phases.receive(message, story.START + after)
    return phases


def left(phases, after):
    return {name: phases.seconds_left(phase, story.START + after) for name, phase in phases.current.items()}


def warm_start(done):
    return TrainerProgress(phase="warm start", done=done, total=600)


def evaluates(sampled, greedy, after):
    status = {"evaluation-0-sampled": f"{sampled}/200", "evaluation-0-greedy": f"{greedy}/200"}
    return story.beat("evaluator-0", "control", status=status, after=after).open(story.Heartbeat), after


def test_units_give_the_time_left():
    phases = phases_of((story.STARTED, 0), (warm_start(0), 4), (warm_start(150), 14))
    assert left(phases, 14) == {"warm start": pytest.approx(30)}
    assert phases.seconds == {"start of the processes": 4}


def test_an_earlier_run_gives_the_time_left_of_a_phase_without_units():
    usual = {"start of the processes": 3.0, "loading the model": 20.0}
    assert left(phases_of((story.STARTED, 0), usual=usual), 1) == {"start of the processes": 2.0}
    loading = phases_of((story.STARTED, 0), (TrainerProgress(phase="loading the model"), 4), usual=usual)
    assert left(loading, 9) == {"loading the model": 15.0}
    assert left(loading, 90) == {"loading the model": 0.0}
    assert left(phases_of((story.STARTED, 0)), 5) == {"start of the processes": None}


def test_an_inference_server_is_a_phase_until_it_has_weights():
    starting = EngineStarting(worker="inference_worker-0", phase="Loading safetensors", seconds=7.0)
    phases = phases_of((story.STARTED, 0), (starting, 9), usual={"inference server of inference_worker-0": 60.0})
    assert left(phases, 12)["inference server of inference_worker-0"] == 50.0
    phases.receive(LOADED, story.START + 40)
    assert phases.seconds["inference server of inference_worker-0"] == 38


def test_the_evaluation_before_the_first_step_counts_both_modes():
    ready = [(story.STARTED, 0), (PUBLISHED, 5), (LOADED, 6)]
    phases = phases_of(*ready, evaluates(20, 0, 8), evaluates(100, 20, 13))
    assert left(phases, 13) == {"evaluation before step 1": pytest.approx(5 * 280 / 100)}
    for mode in ("sampled", "greedy"):
        assert phases.current
        evaluated = story.evaluated(0, 0.3, mode)
        phases.receive(evaluated.open(story.EvaluationCompleted), story.START + 30)
    assert not phases.current
    assert phases.seconds["evaluation before step 1"] == 22


def test_phases_end_with_the_first_step_and_with_the_run():
    begun = [(story.STARTED, 0), (warm_start(3), 2)]
    assert phases_of(*begun, (StepCompleted(step=1, metrics={}, sequences_checksum=""), 9)).current == {}
    assert phases_of(*begun, (RunFinished(steps=0, error="interrupted"), 9)).current == {}
    assert list(phases_of(*begun, (RunStarted(recipe={}, profile="", reason="", folder=""), 9)).current) == [
        "start of the processes"
    ]


def recipe_of(model):
    return msgspec.convert({"run": "now", "steps": 1, "model": model, "task": {}}, Recipe)


def test_times_are_those_of_the_latest_run_with_the_same_model(tmp_path):
    for name, model, seconds in (("a", "embedded", 4.0), ("b", "embedded", 5.0), ("c", "other", 9.0)):
        folder = tmp_path / name
        folder.mkdir()
        keep_times(recipe_of(model), folder, {"warm start": seconds})
        os.utime(folder / "phases.json", (ord(name), ord(name)))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "phases.json").write_text("{")
    assert usual_times(recipe_of("embedded"), tmp_path / "now") == {"warm start": 5.0}
    assert usual_times(recipe_of("embedded"), tmp_path / "elsewhere" / "now") == {}


# ---------------------------------------------------------------- a cause that only the actors show


@pytest.mark.parametrize(("places", "running", "mentioned"), [(4, 3, True), (4, 40, False), (400, 3, False)])
def test_places_of_rollout_workers_that_leave_engines_idle_are_mentioned(places, running, mentioned):
    view = RunView()
    recipe = story.STARTED.recipe | {
        "actors": {"rollout_worker": {"concurrency": places}},
        "generation": {"max_num_seqs": 64},
        "algorithm": {"group_size": 8},
    }
    view.receive(story.sealed(RunStarted(recipe=recipe, profile="", reason="", folder="")))
    for step in range(1, 6):
        view.receive(story.stepped(step))
    view.receive(story.beat("rollout_worker-0", "rollout_worker", handling={"RunEpisode": 4}))
    event = story.throughput("generation", 399, 1.0).open(story.Throughput)
    view.state.throughputs.append(
        type(event)(**{**{f: getattr(event, f) for f in event.__struct_fields__}, "concurrent": running})
    )
    expected = f"all 4 places of the rollout workers are taken, and engines run {running} of 64 completions"
    assert any(sentence.startswith(expected) for sentence in attention(view.state)) is mentioned
