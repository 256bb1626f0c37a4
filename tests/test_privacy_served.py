"""`areal-actors serve` with redaction, retention and an encrypted log, for real: processes, nats-server, kills; nothing
in any file of the run has what was to be redacted, and no file of the store has a text."""

from __future__ import annotations

import random
import signal
import time

import psutil
import pytest
from support.live_run import PATIENT
from support.served_run import ServedRun

from areal_actors.cli import main
from areal_actors.history.database import DATABASE
from areal_actors.messages import EpisodeAbandoned, FeedbackGiven, LogTrimmed, SessionStarted
from areal_bus.recorded import read_log

SECRETS = ("ann@example.com", "4111 1111 1111 1111", "+49 170 1234567")
COMMENT = "a comment that only the log may have"
OPEN = "2 + 2 ="
RULES = "log.redaction.rules=['email','credit_card','phone']"


class Serving(ServedRun):
    """A served model with which users talk."""

    def talk(self, text, **started):
        status, given = self.post("/rl/start_session", {"task_id": "talk", **started}, self.key("admin_key"))
        assert status == 200
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        assert self.post("/v1/chat/completions", body, given["api_key"])[0] == 200
        ended = self.post("/rl/end_session", {}, given["api_key"])[1]
        return given["session_id"], ended["reason"]

    def kill_all(self):
        children = psutil.Process(self.process.pid).children(recursive=True)
        for process in (psutil.Process(self.process.pid), *children):
            process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start()


def files_with(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def events_of(folder, *kinds):
    log = folder / "log"
    assert main(["export", "talks-serve", str(log), "--folder", str(folder)]) == 0
    subjects = {kind.subject: kind for kind in kinds}
    events = [envelope for envelope in read_log(log) if envelope.subject in subjects]
    log.unlink()
    return [envelope.open(subjects[envelope.subject]) for envelope in events]


@pytest.mark.long
@pytest.mark.timeout(6 * PATIENT)
def test_what_is_redacted_encrypted_or_too_old_is_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_STORE_KEY", "a key of this test alone")
    serving = Serving(tmp_path, RULES, "log.encrypt=true", "log.retention.days=0.0002")
    place, randomness = serving.place, random.Random(1)
    try:
        for number, text in enumerate((*SECRETS, OPEN, OPEN)):
            session, reason = serving.talk(text, user=SECRETS[0])
            assert ("log.redaction" in reason) == (text != OPEN)
            judged = {"session_id": session, "reward": 1, "user": SECRETS[0], "comment": f"{COMMENT} {SECRETS[1]}"}
            assert serving.post("/rl/feedback", judged, serving.key("feedback_key"))[0] == 200
            if number == 1:
                serving.kill(randomness)
                serving.until_ready()
        time.sleep(20)  # until the sessions are old
        serving.talk(OPEN, user="bob")
        serving.kill_all()  # the next look at the log is that of a start
        end = time.monotonic() + PATIENT
        while serving.post("/rl/feedback", {"session_id": session, "reward": 0}, serving.key("feedback_key"))[0] != 410:
            assert time.monotonic() < end, serving.text()
            time.sleep(0.5)
        serving.kill_all()  # perhaps between the announcement and the deletion, which the next look completes
        assert serving.post("/rl/feedback", {"session_id": session, "reward": 0}, serving.key("feedback_key"))[0] == 410
        while session in (event.session for event in events_of(tmp_path, SessionStarted)):
            assert time.monotonic() < end, serving.text()
            time.sleep(0.5)
        assert serving.post("/rl/erase", {"user": SECRETS[0]}, serving.key("admin_key"))[0] == 200
        later, _ = serving.talk(OPEN)
    finally:
        assert serving.end() == 0, serving.text()
    for secret in SECRETS:
        assert files_with(tmp_path, secret) == []
    assert files_with(place / "nats", COMMENT) == []
    events = events_of(tmp_path, SessionStarted, FeedbackGiven, LogTrimmed, EpisodeAbandoned)
    trimmed = [event for event in events if isinstance(event, LogTrimmed)]
    assert sum(event.sessions for event in trimmed) >= len(SECRETS)
    started = [event.session for event in events if isinstance(event, SessionStarted)]
    assert (session in started, later in started) == (False, True)
    assert main(["audit", "talks-serve", "--folder", str(tmp_path)]) == 0
    assert main(["show", "talks-serve", "--folder", str(tmp_path)]) == 0
    assert not (place / DATABASE).exists()
    monkeypatch.delenv("AREAL_STORE_KEY")
    assert main(["show", "talks-serve", "--folder", str(tmp_path)]) == 1
