"""Examples that are longer than the model's context are refused by name, before the first step and before anything
starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.live_run import ROOT, LiveRun
from support.samples import letters, published

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.model_config import context_of
from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.messages import ExamplesDrawn, ExamplesDropped, StepCompleted
from areal_actors.recipe.examples import check_examples
from areal_actors.recipe.load import load
from areal_actors.sequences.step_metrics import examples_checksum
from areal_actors.supervised.example_sequences import (
    ExampleSequences,
    LengthLimit,
    sequences_of_example,
    too_long_examples,
)
from areal_actors.supervised.example_source import ExampleSource
from areal_actors.supervised.examples import Example, ExampleConversation
from areal_actors.tokenization.tokenizer import ChatTokenizer

REWRITING = (
    "{% for message in messages %}{{ message.role[0] + ':' }}"
    "{{ message.content if loop.last or message.role == 'user' else '-' }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
"""Template that keeps only the last assistant message."""


def demonstration(*texts, place="here"):
    messages = tuple(
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(texts)
    )
    return Example((ExampleConversation(messages, 1),), place)


def lengths(example, tokenizer, *, scored=False):
    return [len(row.token_ids) - scored for row in sequences_of_example(example, 0, tokenizer, scored=scored)]


def model(folder, context):
    """A folder with what is read of a model before it is loaded."""
    write_tokenizer(train_tokenizer(), folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
    return folder


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 32768}}, 32768),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
    ],
)
def test_the_context_is_read_from_the_models_configuration(tmp_path, config, context):
    assert context_of(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_of(tmp_path) == context


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("template", [None, REWRITING])
def test_exactly_those_are_too_long_of_which_a_row_has_more_tokens(scored, template):
    tokenizer = letters(template=template) if template else letters()
    examples = tuple(demonstration("x" * 7, "y" * 30, "x" * 5, "y" * last) for last in range(60))
    for limit in (10, 60, 80, 1000):
        longest = {index: max(lengths(example, tokenizer, scored=scored)) for index, example in enumerate(examples)}
        found = dict(too_long_examples(limit, examples, tokenizer, scored=scored))
        assert found == {index: tokens for index, tokens in longest.items() if tokens > limit}


def test_of_a_pair_both_answers_must_fit():
    tokenizer = letters()
    pair = Example(
        (*demonstration("2+3?", "five").conversations, *demonstration("2+3?", "f" * 40).conversations),
        "pairs.jsonl, row 1",
    )
    assert dict(too_long_examples(50, (pair,), tokenizer, scored=True)) == {}
    assert dict(too_long_examples(40, (pair,), tokenizer, scored=True)) == {0: len("u:2+3?\na:\n") + 40}


@pytest.mark.parametrize(
    ("held_out", "others"), [(0, ""), (1, r" \(1 more is too long, too\)"), (2, r" \(2 more are too long, too\)")]
)
def test_the_first_that_is_too_long_is_named_with_its_tokens_the_context_and_the_remedy(tmp_path, held_out, others):
    short, long = demonstration("2+3?", "5"), demonstration("2+3?", "5" * 2000, place="sums.jsonl, row 9")
    tokens = max(lengths(long, ChatTokenizer.load(model(tmp_path, 512))))
    lessons = ExampleSequences((short, long), (long,) * held_out)
    words = (
        rf"^sums.jsonl, row 9: {tokens:,} tokens as the .* but the model's context has 512{others}; shorten or split"
    )
    with pytest.raises(SetupError, match=words):
        lessons.begin(str(tmp_path))


def test_a_bound_of_the_recipes_own_is_named_as_such(tmp_path):
    examples = (demonstration("2+3?", "5" * 100),)
    lessons = ExampleSequences(examples, (), limit=LengthLimit(tokens=64))
    with pytest.raises(
        SetupError, match=r"but task.max_length is 64; .* set task.overlong = \"drop\" to drop them, or raise that"
    ):
        lessons.begin(str(model(tmp_path, 512)))


def test_what_is_dropped_is_counted_and_numbers_are_of_what_is_left(tmp_path):
    answers = ("5", "5" * 2000, "6", "7" * 2000, "8", "9")
    train, kept = (tuple(demonstration("2+3?", answer) for answer in some) for some in (answers, answers[:2]))
    lessons = ExampleSequences(train, kept, due=lambda _: 2, limit=LengthLimit(drop=True, min_examples=4))
    assert lessons.begin(str(model(tmp_path, 512))) == ExamplesDropped(dropped=2, held_out_dropped=1, left=4, limit=512)
    rows = ExampleSequences(tuple(train[number] for number in (0, 2, 4, 5)), ())
    rows.begin(str(tmp_path))
    assert examples_checksum(lessons.sequences([3, 1, 0, 2])) == examples_checksum(rows.sequences([3, 1, 0, 2]))
    assert len(lessons.held_out_sequences(0)) == 1
    fewer = ExampleSequences(train, kept, limit=LengthLimit(drop=True, min_examples=5))
    with pytest.raises(
        SetupError, match=r"after dropping 2 examples of more than 512 tokens, 4 are left, fewer than a batch of 5"
    ):
        fewer.begin(str(tmp_path))


async def test_epochs_are_of_what_is_left(send):
    source = ExampleSource(examples=10, seed=3, batch_size=4, steps=6)
    dropped = ExamplesDropped(dropped=2, held_out_dropped=0, left=8, limit=512)
    emitted = await send(
        source,
        dropped,
        published(0),
        *(StepCompleted(step=step, metrics={}, sequences_checksum="") for step in range(1, 6)),
    )
    numbers = [number for event in emitted for number in event.numbers]
    assert [sorted(numbers[8 * epoch : 8 * epoch + 8]) for epoch in range(3)] == [list(range(8))] * 3
    assert emitted[-1].epoch == 2


@pytest.mark.parametrize("setting", ["task.max_length=512", "task.overlong=drop"])
def test_a_run_of_episodes_has_no_use_for_a_bound_of_examples(setting):
    with pytest.raises(
        RecipeError, match=r"`task\.\w+`: found .*, but it limits only examples \(sft, dpo, reward_model\); .* leave it"
    ):
        load([ROOT / "recipes" / "gsm8k_grpo.toml"], (setting,), CudaDevices(0, "none"))


def test_what_fits_is_trained(tmp_path):
    lessons = ExampleSequences((demonstration("2+3?", "5"),), ())
    lessons.begin(str(model(tmp_path, 512)))
    assert len(lessons.sequences([0])) == 1


def long_row(path):
    rows = [{"prompt": f"{number}+1?", "completion": str(number + 1)} for number in range(20)]
    rows[6]["completion"] = "7 " * 9000
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_with_a_model_in_a_folder_they_are_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long_row(Path("rows.jsonl"))
    Path("base").mkdir()
    model(Path("base"), 4096)
    settings = (
        "model=./base",
        "task.dataset=rows.jsonl",
        "task.held_out=2",
        "evaluation.tasks=2",
        "trainer.batch_size=2",
    )
    with pytest.raises(SetupError, match=r"rows.jsonl, row 7: [0-9,]+ tokens as .* the model's context has 4,096;"):
        check_examples(load([ROOT / "recipes" / "sft.toml"], settings, CudaDevices(0, "none")).recipe)


@pytest.mark.slow
async def test_with_a_model_that_the_run_makes_they_end_it_before_the_first_step(tmp_path):
    long_row(tmp_path / "rows.jsonl")
    settings = (f"task.dataset={tmp_path}/rows.jsonl", "task.held_out=2", "evaluation.tasks=2", "trainer.batch_size=2")
    run = LiveRun(
        tmp_path / "runs",
        "run=gsm8k-grpo",
        "profile=embedded",
        *settings,
        recipe=ROOT / "recipes" / "sft.toml",
        small=False,
    )
    try:
        assert await run.ended() == 1
        assert "rows.jsonl, row 7: " in run.output()
        assert "the model's context has 8,192" in " ".join(run.output().split())
        assert not any(
            json.loads(line)["kind"] == "step.completed"
            for line in (run.folder / "metrics.jsonl").read_text().splitlines()
        )
    finally:
        run.abort()


@pytest.mark.slow
async def test_a_run_that_drops_them_trains_on_the_others_and_reports_their_number(tmp_path):
    long_row(tmp_path / "rows.jsonl")
    settings = (
        f"task.dataset={tmp_path}/rows.jsonl",
        "task.held_out=0",
        "evaluation.tasks=0",
        "trainer.batch_size=19",
        "steps=2",
    )
    dropping = ("run=gsm8k-grpo", "profile=embedded", "task.overlong=drop")
    run = LiveRun(tmp_path / "runs", *dropping, *settings, recipe=ROOT / "recipes" / "sft.toml", small=False)
    try:
        assert await run.ended() == 0, run.output()
        log = [event for _, event in await run.log()]
        assert [event for event in log if isinstance(event, ExamplesDropped)] == [
            ExamplesDropped(dropped=1, held_out_dropped=0, left=19, limit=8192)
        ]
        assert [sorted(event.numbers) for event in log if isinstance(event, ExamplesDrawn)] == [list(range(19))] * 2
        assert (
            "1 example and 0 held out, longer than 8,192 tokens; 19 are left"
            in (run.folder / "summary.txt").read_text()
        )
    finally:
        run.abort()
