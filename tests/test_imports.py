"""Rollouts of other programs as a log that the readers of runs read."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from support.live_run import ROOT

from areal_actors.cli import main
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.export.command import export
from areal_actors.imports.command import import_rollouts
from areal_actors.imports.foreign_episode import read_row
from areal_actors.reader.run import open_run

LOG = ROOT / "tests/recordings/log-3.xz"
VERL = [
    {"input": "user\nWhat is 2+2?\n", "output": "#### 4", "gts": "4", "score": 1.0, "step": 1, "acc": 1.0},
    {"input": "user\nWhat is 2+2?\n", "output": "#### 5", "gts": "4", "score": 0.0, "step": 1, "acc": 0.0},
    {"input": "user\nWhat is 3+2?\n", "output": "#### 5", "gts": "5", "score": 1.0, "step": 2, "acc": 1.0},
    {"input": "user\nWhat is 3+2?\n", "output": "", "gts": "5", "score": None, "step": 2},
]
ATIF = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s-1",
    "agent": {"name": "other", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Which city?"}]},
        {"step_id": 3, "source": "agent", "message": "Let me look.", "tool_calls": []},
        {"step_id": 4, "source": "agent", "message": "Ulm"},
    ],
    "extra": {"reward": 0.5, "turns": 2},
}


def write_rows(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_rows_of_verl_are_steps_groups_and_episodes(tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", VERL)
    assert import_rollouts([file], tmp_path / "Old Run.xz") == 0
    assert "4 episodes of 2 steps, 1 of them without a reward (abandoned)" in capsys.readouterr().out
    run = open_run(tmp_path / "Old Run.xz")
    assert run.name == "old-run"
    assert [(row["episode"], row["outcome"], row["step"], row["reward"], row["output"]) for row in run.episodes] == [
        ("0.0", "exported", 1, 1.0, "#### 4"),
        ("0.1", "exported", 1, 0.0, "#### 5"),
        ("1.0", "exported", 2, 1.0, "#### 5"),
        ("1.1", "abandoned", None, None, ""),
    ]
    assert [(row["step"], row["reward_mean"], row["reward/acc"]) for row in run.steps] == [(1, 0.5, 0.5), (2, 1.0, 1.0)]


def test_an_imported_log_is_shown_compared_and_scored_again(tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", VERL)
    log = str(tmp_path / "other.xz")
    assert main(["import", file, log]) == 0
    for words in (["show", log], ["show", log, "0.1"], ["why", log], ["compare", log, str(LOG)]):
        assert main(words) == 0
    printed = capsys.readouterr().out
    assert "#### 5" in printed
    assert "sampled the same tokens" not in printed
    assert main(["what-if", log, "task.reward=gsm8k"]) == 0
    assert "failed on" not in capsys.readouterr().out


def test_an_imported_log_is_no_proof_of_a_run(tmp_path, capsys):
    import_rollouts([write_rows(tmp_path / "rows.jsonl", VERL)], tmp_path / "other.xz")
    assert main(["audit", str(tmp_path / "other.xz")]) != 0
    assert "this log was imported from another program" in capsys.readouterr().err


def test_texts_are_never_demonstrations(tmp_path):
    import_rollouts([write_rows(tmp_path / "rows.jsonl", VERL)], tmp_path / "other.xz")
    with pytest.raises(SetupError, match=r"has no demonstration: .*no sampled tokens"):
        export(str(tmp_path / "other.xz"), tmp_path / "best.jsonl", kind="sft")


def test_trajectories_of_this_program_keep_their_tokens(tmp_path):
    export(str(LOG), tmp_path / "trajectories", kind="atif")
    import_rollouts([str(tmp_path / "trajectories")], tmp_path / "again.xz")

    def sampled(path):
        calls = Counter[tuple[float, bytes, bytes]]()
        for ended in open_run(path).records.ended.values():
            if ended.trajectory is not None:
                columns = [call.completion for call in ended.trajectory.interactions]
                calls.update((ended.trajectory.reward, column.token_ids, column.logprobs) for column in columns)
        return calls

    assert sampled(tmp_path / "again.xz") == sampled(LOG) != Counter()


def test_trajectories_of_others_are_read_with_their_reward():
    episode = read_row(ATIF, {}, "here")
    assert (episode.prompt, episode.completion, episode.reward) == ("Be brief.\nWhich city?", "Ulm", 0.5)
    assert episode.metrics == {"reward": 0.5, "turns": 2.0}
    assert read_row({**ATIF, "extra": {}}, {}, "here").reward is None
    assert read_row({**ATIF, "extra": {"score": 2}}, {"reward": "score"}, "here").reward == 2.0


def test_a_reward_of_true_or_false_is_a_number():
    assert read_row({"prompt": "?", "completion": "!", "reward": True}, {}, "here").reward == 1.0


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"question": "?"}, {}, r"no column holds the completion; found question: name it with --column completion"),
        ({"prompt": "?", "completion": "!"}, {"reward": "r"}, r"there is no column `r`; found prompt, completion"),
        ({"prompt": "?", "completion": "!", "reward": "good"}, {}, r"the reward is 'good'; expected a finite number"),
        ({"prompt": "?", "completion": "!", "step": "last"}, {}, "the step is 'last'; expected a whole number"),
        ({"prompt": "?", "completion": "!", "reward": float("inf")}, {}, "expected a finite number"),
        ({"schema_version": "ATIF-v1.6", "steps": [{}]}, {}, "without `source`"),
    ],
)
def test_rows_that_are_no_episodes_are_refused_by_name(row, columns, message):
    with pytest.raises(SetupError, match=message):
        read_row(row, columns, "rows.jsonl, row 1")


def test_a_column_that_is_named_wrongly_is_refused(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", VERL)
    with pytest.raises(RecipeError, match="write one of prompt, completion"):
        import_rollouts([file], tmp_path / "other.xz", column=["score"])
    assert not (tmp_path / "other.xz").exists()
