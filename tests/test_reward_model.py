"""A trained reward model, served: its score of each conversation does not depend on how many are scored at once."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
import torch
from support.clock import jumping_time
from support.live_run import LiveRun
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from areal_actors.core.errors import RewardError, SetupError
from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.messages import EpisodeScored
from areal_actors.rewards.reward_model import ModelScorer, SequenceClassifier, batches, conversation
from areal_actors.rewards.settings import RewardModelSettings

TASK = {"id": "eggs-3", "question": "How many eggs are left?"}
OUTPUTS = ["18", "There are 18 eggs left.", "<<16-3-4=9>>9\n#### 9", "", "Ann has 3 apples. " * 8]
SETTINGS = RewardModelSettings(device="cpu", batch_tokens=4096)
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def written(folder, kind=Qwen3ForSequenceClassification, labels=1, **config):
    tokenizer = train_tokenizer()
    folder.mkdir()
    write_tokenizer(tokenizer, folder)
    torch.manual_seed(0)
    shape = {
        **SHAPE,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        **config,
    }
    model = kind(Qwen3Config(num_labels=labels, **shape))
    model.save_pretrained(folder)
    return str(folder)


def without_template(folder):
    settings = Path(folder, "tokenizer_config.json")
    settings.write_text(
        json.dumps({name: value for name, value in json.loads(settings.read_text()).items() if name != "chat_template"})
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("reward") / "model")


@pytest.fixture
def model(folder):
    return SequenceClassifier(folder, SETTINGS)


@pytest.fixture
async def scorer(model):
    scorer = ModelScorer("model:rm", model, SETTINGS, timeout_seconds=20.0)
    yield scorer
    await scorer.close()


def by_transformers(folder, output):
    """The same score by transformers alone, one conversation at a time and without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": TASK["question"]}, {"role": "assistant", "content": output}]
    ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
    with torch.no_grad():
        return float(classifier(input_ids=ids).logits[0, 0])


async def test_scores_are_those_of_transformers_and_do_not_depend_on_who_is_scored_beside(folder, scorer):
    expected = [by_transformers(folder, output) for output in OUTPUTS]
    together = await asyncio.gather(*(scorer.score(TASK, output) for output in OUTPUTS))
    alone = [await scorer.score(TASK, output) for output in OUTPUTS]
    assert together == pytest.approx(expected, abs=1e-4)
    assert alone == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.1


def test_a_conversation_that_ends_in_the_padding_token_is_scored_at_that_token(model):
    torch.manual_seed(1)
    conversations = [torch.randint(0, 50, (length,)).tolist() for length in (3, 9, 5)]
    for last in range(4):
        rows = [[*ids, number] for number, ids in enumerate(conversations, start=last)]
        assert model.scores(rows) == pytest.approx([model.scores([row])[0] for row in rows], abs=1e-5)


async def test_those_who_ask_at_the_same_time_share_a_forward_pass(scorer, monkeypatch):
    sizes = []
    scores = scorer.model.scores
    monkeypatch.setattr(scorer.model, "scores", lambda rows: sizes.append(len(rows)) or scores(rows))
    await asyncio.gather(*(scorer.score(TASK, "18") for _ in range(12)))
    assert sizes == [12]
    sizes.clear()
    scorer.model.batch_tokens = 4 * len(scorer.model.ids(TASK, "18"))
    await asyncio.gather(*(scorer.score(TASK, "18") for _ in range(10)))
    assert sizes == [4, 4, 2]


def test_batches_hold_to_the_budget_with_their_padding():
    lengths = [5, 1, 9, 9, 30, 2, 2]
    made = list(batches(lengths, 20))
    assert sorted(index for batch in made for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or max(lengths[index] for index in batch) * len(batch) <= 20 for batch in made)
    assert made[0] == [4]
    assert list(batches([], 20)) == []


async def test_a_score_that_takes_too_long_fails_by_its_deadline(scorer, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(scorer.model, "scores", lambda rows: [float(over.wait(300))] * len(rows))
    loop = asyncio.get_running_loop()
    with jumping_time():
        started = loop.time()
        with pytest.raises(
            RewardError,
            match=r"^reward model:rm took more than 20 s; raise task\.reward_timeout_seconds .* \(task eggs-3\)$",
        ):
            await scorer.score(TASK, "18")
        assert loop.time() - started == pytest.approx(20.0)
    over.set()


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        (lambda rows: [float("nan")] * len(rows), "a reward must be finite, got nan"),
        (lambda rows: [-float("inf")] * len(rows), "a reward must be finite, got -inf"),
        (lambda rows: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda rows: torch.zeros(2) @ torch.zeros(3), "raised RuntimeError: "),
    ],
)
async def test_a_score_that_is_no_number_is_an_error_that_names_the_task(scorer, monkeypatch, scores, complaint):
    monkeypatch.setattr(scorer.model, "scores", scores)
    with pytest.raises(RewardError, match=f"^reward model:rm {complaint}.*\\(task eggs-3\\)$"):
        await scorer.score(TASK, "18")
    monkeypatch.undo()
    assert isinstance(await scorer.score(TASK, "18"), float)


async def test_what_cannot_be_shown_to_the_model_is_an_error(scorer):
    with pytest.raises(
        RewardError,
        match=r"has \d+ tokens, the reward model's context is 256; lower generation.max_model_len \(task eggs-3\)$",
    ):
        await scorer.score(TASK, "18 " * 300)
    with pytest.raises(RewardError, match="the task has neither `messages`, a list of tables, nor a `question`"):
        await scorer.score({"id": "eggs-4"}, "18")


async def test_closing_fails_pending_calls(model):
    scorer = ModelScorer("model:rm", model, SETTINGS, timeout_seconds=20.0)
    scores = [asyncio.create_task(scorer.score(TASK, "18")) for _ in range(3)]
    await asyncio.sleep(0)
    await scorer.close()
    for score in [*scores, scorer.score(TASK, "18")]:
        with pytest.raises(RewardError, match="closed before the score was computed"):
            await score


async def test_a_score_without_waiting_caller_is_skipped(scorer):
    given_up = asyncio.create_task(scorer.score(TASK, "17"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert isinstance(await scorer.score(TASK, "18"), float)


def test_a_conversation_of_several_messages_is_shown_as_it_was():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    assert conversation({"messages": messages, "question": "other"}, "18") == [
        *messages,
        {"role": "assistant", "content": "18"},
    ]


def test_only_a_trained_reward_model_is_served(tmp_path):
    for folder, complaint in [
        (written(tmp_path / "causal", Qwen3ForCausalLM), "holds no trained reward model, it lacks score.weight"),
        (written(tmp_path / "two", labels=2), "has 2 labels; a reward model has one"),
        (without_template(written(tmp_path / "silent")), "has no chat template"),
        (str(tmp_path), "has no config.json"),
    ]:
        with pytest.raises(SetupError, match=complaint):
            SequenceClassifier(folder, SETTINGS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(folder):
    with pytest.raises(SetupError, match="torch finds no CUDA device"):
        SequenceClassifier(folder, RewardModelSettings(device="cuda"))


@pytest.fixture
def live(tmp_path):
    runs = []

    def start(folder, *settings):
        run = LiveRun(tmp_path / f"runs-{len(runs)}", "steps=1", f"task.reward=model:{folder}", *settings)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.abort()


@pytest.mark.long
@pytest.mark.slow
async def test_a_run_is_scored_by_a_reward_model_and_ends_when_there_is_none(live, tmp_path):
    folder = written(tmp_path / "model", max_position_embeddings=1024)
    run = live(folder, "actors.reward_worker.concurrency=16")
    assert await run.ended() == 0, run.output()
    scored = [event for _, event in await run.log() if isinstance(event, EpisodeScored)]
    assert len(scored) >= 16
    model = SequenceClassifier(folder, SETTINGS)
    for event in scored[:5]:
        assert event.reward == pytest.approx(model.scores([model.ids(event.work.task.data, event.output)])[0], abs=1e-4)
    run = live(written(tmp_path / "broken", labels=2, max_position_embeddings=1024))
    assert await run.ended() == 1
    assert "has 2 labels; a reward model has one" in run.output()
