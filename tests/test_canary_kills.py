"""Two sets of weights behind one gateway whose processes are killed: no session ever has tokens of both."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.live_run import PATIENT, ROOT
from support.served_run import SMALL, ServedRun

from areal_actors.canary.assignment import is_in_share
from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices
from areal_actors.messages import CandidateDecided, ConversationKept, SessionStarted, ShadowAnswered
from areal_actors.processes.recipe_model import model_of
from areal_actors.recipe.load import load
from areal_bus.recorded import read_log

KILLS = int(os.environ.get("AREAL_CANARY_KILLS", "4"))
SHARE, OPEN = 0.5, 6


def make_candidate(folder):
    """The served model with other numbers in one tensor."""
    recipe = load([ROOT / "recipes/online.toml"], [f"folder={folder}", *SMALL], CudaDevices(0, "none")).recipe
    place = folder / "candidate"
    shutil.copytree(Path(model_of(recipe)), place)
    (place / "manifest.json").unlink()
    (file,) = place.glob("*.safetensors")
    tensors = load_file(file)
    name = min(tensors)
    save_file({**tensors, name: tensors[name] * 1.01}, file, metadata={"format": "pt"})
    return recipe, place


def settings(place, **others):
    fields = {"model": place, "share": SHARE, **others}
    return ["actors.inference_worker.count=2", *(f"gateway.candidate.{name}={value}" for name, value in fields.items())]


class Talks:
    """Sessions that are open at once, and called in turn."""

    def __init__(self, serving, seed):
        self.serving, self.seed = serving, seed
        self.open = {}
        self.judged = 0

    def step(self, randomness, reward):
        """Begin a session or go on with one, and end and judge it after a few calls."""
        serving = self.serving
        if len(self.open) < OPEN:
            status, given = serving.post("/rl/start_session", {"task_id": "talk"}, serving.key("admin_key"))
            if status == 200:
                self.open[given["session_id"]] = (given["api_key"], [], randomness.randint(1, 4))
            return status == 200
        session = randomness.choice(list(self.open))
        key, messages, calls = self.open[session]
        messages.append({"role": "user", "content": "2 + 3 ="})
        body = {"model": "m", "messages": messages, "max_tokens": 8}
        status, answer = serving.post("/v1/chat/completions", body, key)
        if status != 200:
            if status in {401, 403, 404, 410}:
                del self.open[session]  # it was lost with its gateway
            return False
        messages.append(answer["choices"][0]["message"])
        if len(messages) < 2 * calls:
            return True
        del self.open[session]
        ended = serving.post("/rl/end_session", {}, key)[0] == 200
        judgement = {"session_id": session, "reward": reward(is_in_share(self.seed, 1, session, SHARE))}
        self.judged += serving.post("/rl/feedback", judgement, serving.key("feedback_key"))[0] == 200
        return ended


def read_events(folder, kind):
    file = folder / "log"
    if not file.exists():
        assert main(["export", "talks-serve", str(file), "--folder", str(folder)]) == 0
    return [envelope.open(kind) for envelope in read_log(file) if envelope.subject == kind.subject]


@pytest.mark.long
@pytest.mark.timeout(6 * PATIENT)
def test_no_session_has_tokens_of_two_versions_whatever_is_killed_and_decided(tmp_path, capsys):
    recipe, place = make_candidate(tmp_path)
    randomness, killed = random.Random(1), Counter[str]()
    serving = ServedRun(tmp_path, *settings(place))
    talks = Talks(serving, recipe.seed)
    try:
        for number in range(KILLS):
            is_shown = number >= KILLS // 2

            def reward(is_candidate, is_shown=is_shown):
                return float(is_candidate) if is_shown else 0.5

            goal, end = talks.judged + (80 if number == KILLS // 2 else 4), time.monotonic() + PATIENT
            while talks.judged < goal:
                assert time.monotonic() < end, serving.text()
                if not talks.step(randomness, reward):
                    time.sleep(0.05)
            killed[serving.kill(randomness)] += 1
        serving.until_ready()
        assert serving.end() == 0, serving.text()
    finally:
        if serving.process.poll() is None:
            serving.end()
    capsys.readouterr()
    assert main(["audit", "talks-serve", "--folder", str(tmp_path)]) == 0, killed
    assert "0 lost, 0 twice" in capsys.readouterr().out
    starts = {start.session: start.weight_version for start in read_events(tmp_path, SessionStarted)}
    sampled = {
        kept.session: {span.weight_version for call in kept.interactions for span in call.completion.versions}
        for kept in read_events(tmp_path, ConversationKept)
    }
    assert {name: its for name, its in sampled.items() if its != {starts[name]}} == {}, killed
    assert Counter(starts[name] for name in sampled).keys() == {0, 1}
    (decided,) = read_events(tmp_path, CandidateDecided)
    assert (decided.decision, decided.by) == ("promoted", "test")
    assert main(["serve", "promote", "talks-serve", "--folder", str(tmp_path)]) == 0
    counts = Counter(starts[name] for name in sampled)
    (tmp_path / "counts.txt").write_text(f"{len(sampled)} sessions by version {dict(counts)}; killed {dict(killed)}")


@pytest.mark.long
@pytest.mark.timeout(2 * PATIENT)
def test_a_shadow_answers_beside_and_is_in_no_session(tmp_path):
    recipe, place = make_candidate(tmp_path)
    serving = ServedRun(tmp_path, *settings(place, mode="shadow"))
    talks, randomness = Talks(serving, recipe.seed), random.Random(1)
    try:
        end = time.monotonic() + PATIENT
        while talks.judged < 12:
            assert time.monotonic() < end, serving.text()
            talks.step(randomness, lambda _: 1.0)
        time.sleep(1.0)
        assert serving.end() == 0, serving.text()
    finally:
        if serving.process.poll() is None:
            serving.end()
    assert main(["audit", "talks-serve", "--folder", str(tmp_path)]) == 0
    assert main(["serve", "promote", "talks-serve", "--folder", str(tmp_path)]) == 1
    calls = {call.id: kept.session for kept in read_events(tmp_path, ConversationKept) for call in kept.interactions}
    shadows = read_events(tmp_path, ShadowAnswered)
    assert len(shadows) > 5
    for shadow in shadows:
        assert calls.get(shadow.interaction, shadow.session) == shadow.session
        assert is_in_share(recipe.seed, 1, shadow.session, SHARE)
        assert {span.weight_version for span in shadow.answer.completion.versions} == {1}
        assert shadow.answer.id not in calls
    assert {start.weight_version for start in read_events(tmp_path, SessionStarted)} == {0}
