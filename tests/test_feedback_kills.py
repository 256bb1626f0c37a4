"""Feedback on a served model whose processes are killed: what was acknowledged is in the log, once."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter

import pytest
from support.live_run import PATIENT
from support.served_run import ServedRun

from areal_actors.cli import main
from areal_actors.messages import ConversationKept, FeedbackGiven
from areal_bus.recorded import read_log

KILLS = int(os.environ.get("AREAL_FEEDBACK_KILLS", "4"))


class Serving(ServedRun):
    """A served model with which users talk."""

    def talk(self):
        """A session with a call and an end; its name and call if all was answered."""
        status, given = self.post("/rl/start_session", {"task_id": "talk"}, self.key("admin_key"))
        if status != 200:
            return None
        messages = [{"role": "user", "content": "2 + 3 ="}]
        status, answer = self.post(
            "/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": 4}, given["api_key"]
        )
        if status != 200 or self.post("/rl/end_session", {}, given["api_key"])[0] != 200:
            return None
        return given["session_id"], answer["id"]


@pytest.mark.long
@pytest.mark.timeout(6 * PATIENT)
def test_acknowledged_feedback_and_ended_sessions_outlive_kills(tmp_path):
    randomness = random.Random(1)
    serving = Serving(tmp_path)
    talks, acknowledged, killed = list[tuple[str, str]](), dict[str, float](), Counter[str]()
    try:
        for number in range(KILLS):
            goal = len(talks) + 3
            end = time.monotonic() + PATIENT
            while len(talks) < goal:
                assert time.monotonic() < end, (tmp_path / "output.txt").read_text()
                if (talk := serving.talk()) is None:
                    time.sleep(0.2)
                    continue
                talks.append(talk)
                session, call = randomness.choice(talks)
                judged = {"session_id": session} if randomness.random() < 0.5 else {"interaction_id": call}
                name, reward = f"click-{len(talks)}", float(randomness.randint(0, 1))
                body = {**judged, "reward": reward, "id": name, "user": f"user-{number}"}
                for _ in range(2):  # as clients do that missed the answer
                    if serving.post("/rl/feedback", body, serving.key("feedback_key"))[0] == 200:
                        acknowledged[name] = reward
            killed[serving.kill(randomness)] += 1
        serving.until_ready()
        assert serving.end() == 0, (tmp_path / "output.txt").read_text()
    finally:
        if serving.process.poll() is None:
            serving.end()
    assert main(["audit", "talks-serve", "--folder", str(tmp_path)]) == 0
    rows = tmp_path / "rows.jsonl"
    exported = ["export", "talks-serve", str(rows), "--sft", "--least-reward", "0", "--best", "100"]
    assert main([*exported, "--folder", str(tmp_path)]) == 0
    assert len({json.loads(row)["completion"] for row in rows.read_text().splitlines()}) > 0
    log = tmp_path / "log"
    assert main(["export", "talks-serve", str(log), "--folder", str(tmp_path)]) == 0
    events = list(read_log(log))
    given = [envelope.open(FeedbackGiven) for envelope in events if envelope.subject == FeedbackGiven.subject]
    kept = [envelope.open(ConversationKept) for envelope in events if envelope.subject == ConversationKept.subject]
    counts = Counter(event.id for event in given)
    assert {name: reward for name, reward in acknowledged.items() if counts[name] != 1} == {}, killed
    assert all(event.reward == acknowledged.get(event.id, event.reward) for event in given)
    conversations = Counter(conversation.session for conversation in kept)
    assert {session: conversations[session] for session, _ in talks if conversations[session] != 1} == {}, killed
