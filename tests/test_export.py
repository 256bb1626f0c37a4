"""Episodes of a log as demonstrations, pairs and trajectories, with their tokens as they were sampled."""

from __future__ import annotations

import json
import subprocess

import msgspec
import pytest
from support.live_run import ROOT
from test_example_lengths import model

from areal_actors.cli import main
from areal_actors.core.errors import SetupError
from areal_actors.core.values import Interaction, TokenColumns, Trajectory, pack_ids
from areal_actors.export.atif import from_atif, to_atif
from areal_actors.export.command import export
from areal_actors.export.examples import demonstration_rows
from areal_actors.export.selection import select_best, select_pairs
from areal_actors.messages import TrajectoryExported
from areal_actors.reader.records import EndedEpisode
from areal_actors.reader.run import open_run
from areal_actors.sequences.credit import Credit
from areal_actors.supervised.example_sequences import ExampleSequences
from areal_actors.supervised.examples import open_examples

LOG = ROOT / "tests/recordings/log-3.xz"
HARBOR = ROOT / ".environments/harbor/bin/python"
VALIDATES = """
import json, sys
from harbor.models.trajectories import Trajectory
documents = [json.loads(line) for line in open(sys.argv[1])]
for document in documents:
    Trajectory.model_validate(document)
print(len(documents))
"""


@pytest.fixture(scope="module")
def recorded():
    return open_run(LOG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder as far as it is read before the model is loaded."""
    return str(model(tmp_path_factory.mktemp("model"), 64))


def sequences_of_rows(rows, kind, folder, *, scored=False):
    """Training sequences of a file's first example."""
    examples = open_examples(str(rows), kind, seed=0, held_out=0, columns={})
    source = ExampleSequences(examples.train, examples.held_out, scored=scored)
    source.begin(folder)
    return source.sequences([0])


def call(name, prompt, sampled, **fields):
    columns = TokenColumns.of(sampled, [-0.5] * len(sampled), [3] * len(sampled))
    return Interaction(id=name, prompt_suffix=pack_ids(prompt), completion=columns, finish_reason="stop", **fields)


def attempt(episode, reward, *calls, attempt=1, sequence=1):
    group = episode.partition(".")[0]
    trajectory = Trajectory(episode=episode, group=group, attempt=attempt, task="t", reward=reward, interactions=calls)
    return EndedEpisode(TrajectoryExported(trajectory=trajectory), 1.0, sequence, None, "")


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_demonstrations_have_the_tokens_that_were_sampled_in_the_best_episodes(recorded, tmp_path, capsys):
    assert export(str(LOG), tmp_path / "best.jsonl", kind="sft") == 0
    rows = rows_of(tmp_path / "best.jsonl")
    trajectories = {
        ended.episode: ended.trajectory for ended in recorded.records.ended.values() if ended.trajectory is not None
    }
    rewarded = {name for name, trajectory in trajectories.items() if trajectory.reward >= 0.5}
    assert {row["episode"] for row in rows} <= rewarded
    assert len({row["episode"].partition(".")[0] for row in rows}) == len(rows) > 0
    for row in rows:
        sampled = [
            token
            for call in trajectories[row["episode"]].interactions
            for token in call.completion.ids_array().tolist()
        ]
        pairs = zip(row["input_ids"], row["completion_mask"], strict=True)
        assert [token for token, learned in pairs if learned] == sampled
    assert f"{len(rows)} demonstrations" in capsys.readouterr().out


def test_of_a_group_the_best_and_of_equal_tokens_one_is_chosen():
    ended = [
        attempt("1.0", 0.2, call("a", [1], [5])),
        attempt("1.1", 1.0, call("b", [1], [6])),
        attempt("1.2", 1.0, call("c", [1], [6])),
        attempt("1.3", 0.9, call("d", [1], [7])),
        attempt("2.0", 0.4, call("e", [1], [8])),
    ]
    chosen = select_best(ended, best=2, least_reward=0.5)
    assert [one.episode for one in chosen.chosen] == ["1.1", "1.3"]
    assert dict(+chosen.left_out) == {"a lower reward": 2, "the same tokens as another of their group": 1}
    assert chosen.highest == 1.0
    assert [one.episode for one in select_best(ended, best=1, least_reward=0.4).chosen] == ["1.1", "2.0"]


def test_the_last_attempt_at_an_episode_counts():
    ended = [attempt("1.0", 1.0, call("a", [1], [5])), attempt("1.0", 0.0, call("b", [1], [6]), attempt=2)]
    assert select_best(ended, best=1, least_reward=0.5).chosen == []


def test_a_pair_is_the_best_and_the_worst_answer_to_one_prompt():
    answers = [
        attempt(f"1.{number}", reward, call("a", [1, 2], [number + 5])) for number, reward in enumerate((0.1, 0.9, 0.4))
    ]
    others = [attempt("2.0", 1.0, call("a", [1], [5])), attempt("2.1", 0.0, call("a", [2], [5]))]
    equal = [attempt("3.0", 0.3, call("a", [1], [5])), attempt("3.1", 0.1 + 0.2, call("a", [1], [6]))]
    several = [
        attempt("4.0", 1.0, call("a", [1], [5]), call("b", [2], [5], prefix="a")),
        attempt("4.1", 0.0, call("a", [1], [6])),
    ]
    selection = select_pairs([*answers, *others, *equal, *several], margin=0.0)
    assert [(better.episode, worse.episode) for better, worse in selection.pairs] == [("1.1", "1.0")]
    assert dict(selection.left_out) == {
        "different prompts": 1,
        "rewards that are too close": 1,
        "several model calls": 1,
    }
    assert select_pairs(answers, margin=0.9).pairs == []


def test_calls_that_do_not_extend_each_other_are_rows_of_their_own_and_context_is_not_learned():
    calls = (
        call("a", [1, 2], [5]),
        call("b", [3], [6, 7], prefix="a", parent="a"),
        call("c", [9, 9], [8]),
        call("d", [4], [4], trained=False),
    )
    rows = list(demonstration_rows(attempt("1.0", 1.0, *calls), Credit(), lambda _: None))
    assert [(row["input_ids"], row["completion_mask"]) for row in rows] == [
        ([1, 2, 5, 3, 6, 7], [0, 0, 1, 0, 1, 1]),
        ([9, 9, 8], [0, 0, 1]),
    ]


def test_demonstrations_and_pairs_are_trained_as_they_were_sampled(folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input_ids": [1, 2, 3, 4], "completion_mask": [0, 0, 1, 1]}))
    (sequence,) = sequences_of_rows(rows, "demonstrations", folder)
    assert sequence.token_ids.tolist() == [1, 2, 3, 4]
    assert sequence.loss_mask.tolist() == [False, False, True, True]
    rows.write_text(json.dumps({"prompt_ids": [1, 2], "chosen_ids": [3, 4], "rejected_ids": [5]}))
    chosen, rejected = sequences_of_rows(rows, "pairs", folder)
    assert (chosen.token_ids.tolist(), rejected.token_ids.tolist()) == ([1, 2, 3, 4], [1, 2, 5])
    assert (chosen.reward, rejected.reward) == (1.0, 0.0)
    scored = sequences_of_rows(rows, "pairs", folder, scored=True)
    assert [row.token_ids.tolist() for row in scored] == [[1, 2, 3, 4, 0], [1, 2, 5, 0]]


def test_rows_with_the_prompt_of_a_held_out_row_are_not_trained(tmp_path):
    rows = tmp_path / "rows.jsonl"
    prompts = ([1, 2], [1, 2], [1, 3], [1, 4])
    rows.write_text(
        "\n".join(json.dumps({"input_ids": [*prompt, 9], "completion_mask": [0, 0, 1]}) for prompt in prompts)
    )
    examples = open_examples(str(rows), "demonstrations", seed=0, held_out=1, columns={})
    kept = examples.held_out[0].conversations[0].prompt
    assert all(examples.train[number].conversations[0].prompt != kept for number in range(len(examples.train)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completion_mask": [0, 1]}, "as long as `input_ids`"),
        ({"completion_mask": [0, 0, 0, 0]}, "1 at a later one"),
        ({"completion_mask": [1, 0, 0, 0]}, "0 at the first token"),
        ({"input_ids": [1, "2", 3, 4]}, "list of token ids"),
        ({"input_ids": [1, 2, 3, 900_000]}, "of another model's tokenizer"),
        ({"prompt": "other", "completion": "text"}, "of another model's tokenizer"),
    ],
)
def test_rows_that_are_no_tokens_of_the_model_are_refused(folder, tmp_path, change, message):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input_ids": [1, 2, 3, 4], "completion_mask": [0, 0, 1, 1]} | change))
    with pytest.raises(SetupError, match=message):
        sequences_of_rows(rows, "demonstrations", folder)


@pytest.mark.parametrize("log", ["log-2.xz", "log-3.xz"])
def test_a_trajectory_in_atif_is_read_again_as_it_was(log):
    run = open_run(ROOT / "tests/recordings" / log)
    trajectories = [ended.trajectory for ended in run.records.ended.values() if ended.trajectory is not None]
    assert trajectories
    for trajectory in trajectories:
        assert from_atif(as_document(trajectory)) == trajectory


def as_document(trajectory):
    document = to_atif(trajectory, run="r", version="1", model="m", time=1.0, text=lambda ids: " ".join(map(str, ids)))
    return msgspec.json.decode(msgspec.json.encode(document))


def test_fields_that_the_format_lacks_survive_in_extra():
    columns = TokenColumns.of([5, 6], [-0.1, float("-inf")], [1, 2])
    calls = (
        call("a", [1, 2], [3], role="solver", follows=("x",), temperature=0.5),
        msgspec.structs.replace(call("b", [4], [0], prefix="a", parent="a", reward=0.25), completion=columns),
        call("c", [7], [8], trained=False, routes=b"\x00\xff", call_problem="json"),
    )
    trajectory = attempt("12.3", 0.75, *calls).trajectory
    document = as_document(trajectory)
    assert from_atif(document) == trajectory
    agent = [step for step in document["steps"] if step["source"] == "agent"]
    assert agent[1]["metrics"]["prompt_token_ids"] == [1, 2, 3, 4]
    assert "logprobs" not in agent[1]["metrics"]
    assert document["extra"]["reward"] == 0.75
    assert [step["step_id"] for step in document["steps"]] == list(range(1, 7))


def test_a_damaged_document_is_refused_by_name():
    document = as_document(attempt("1.0", 1.0, call("a", [1], [2])).trajectory)
    del document["steps"][1]["metrics"]["completion_token_ids"]
    with pytest.raises(SetupError, match=r"r/1\.0/1.*completion_token_ids"):
        from_atif(document)


@pytest.mark.skipif(not HARBOR.exists(), reason="`just environments harbor`")
def test_harbor_s_own_models_accept_the_trajectories(tmp_path):
    export(str(LOG), path := tmp_path / "episodes.jsonl", kind="atif")
    printed = subprocess.run([HARBOR, "-c", VALIDATES, str(path)], capture_output=True, text=True, check=True).stdout
    assert int(printed) == len(rows_of(path)) > 0


def test_the_command_names_what_is_missing(tmp_path, capsys):
    words = ["export", str(LOG), str(tmp_path / "x.jsonl"), "--sft", "--least-reward", "2"]
    assert main(words) != 0
    assert "write --least-reward 1 or lower" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
