import json

import pytest

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.supervised.examples import arithmetic_examples, open_examples
from areal_actors.tasks.arithmetic import problems


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def file(tmp_path):
    def write(*rows, name="examples.jsonl"):
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return str(path)

    return write


def opened(spec, kind="demonstrations", *, seed=0, held_out=0, **columns):
    return open_examples(spec, kind, seed=seed, held_out=held_out, columns=columns)


def all_of(examples):
    return [examples[number] for number in range(len(examples))]


def only(spec, kind="demonstrations", **columns):
    """The conversations of a file's one example."""
    (example,) = all_of(opened(spec, kind, **columns).train)
    return example.conversations


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
ASKED = user("2+3?")


@pytest.mark.parametrize(
    ("row", "first"),
    [
        ({"messages": [ASKED, assistant("5")]}, 1),
        (
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    ASKED,
                    assistant("5"),
                    user("sure?"),
                    assistant("yes"),
                ],
                "id": 7,
            },
            2,
        ),
        ({"prompt": "2+3?", "completion": "5"}, 1),
        ({"prompt": [ASKED, assistant("6"), user("no")], "completion": [assistant("5")]}, 3),
        ({"question": "2+3?", "answer": "5"}, 1),
    ],
)
def test_a_demonstration_is_a_conversation_whose_answers_are_learned(file, row, first):
    (conversation,) = only(file(row))
    assert conversation.first == first
    assert conversation.messages[first]["role"] == "assistant"
    assert next(message["content"] for message in conversation.messages if message["role"] == "user") == "2+3?"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+3?", "chosen": "5", "rejected": "6"},
        {"prompt": [ASKED], "chosen": [assistant("5")], "rejected": [assistant("6")], "score_chosen": 9.5},
        {"chosen": [ASKED, assistant("5")], "rejected": [ASKED, assistant("6")]},
        {"prompt": "2+3?", "chosen": [ASKED, assistant("5")], "rejected": [ASKED, assistant("6")]},
    ],
    ids=["texts", "messages", "whole conversations", "whole conversations beside their prompt"],
)
def test_a_pair_is_two_conversations_that_part_where_the_answers_begin(file, row):
    chosen, rejected = only(file(row), "pairs")
    assert (chosen.messages, chosen.first) == ((ASKED, assistant("5")), 1)
    assert (rejected.messages, rejected.first) == ((ASKED, assistant("6")), 1)


def test_tools_stand_beside_the_messages_and_calls_may_be_learned(file):
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "get_weather"}}],
    }
    (conversation,) = only(file({"messages": [user("Rain?"), call], "tools": [WEATHER]}))
    assert conversation.tools == (WEATHER,)
    assert conversation.messages[conversation.first] == call


def test_a_dataset_that_calls_its_fields_otherwise_is_read_by_columns(file):
    (conversation,) = only(file({"instruction": "2+3?", "output": "5"}), prompt="instruction", completion="output")
    assert conversation.messages == (ASKED, assistant("5"))


@pytest.mark.parametrize(
    ("kind", "row", "complaint"),
    [
        (
            "demonstrations",
            {"text": "hi"},
            "expected `messages` or `prompt` and `completion` or `question` and `answer`; the row has `text`",
        ),
        ("demonstrations", {"messages": []}, "`messages` must be a non-empty text or a list of chat messages, got []"),
        (
            "demonstrations",
            {"messages": [ASKED]},
            "`messages` has no assistant message; there is nothing to learn from it",
        ),
        (
            "demonstrations",
            {"messages": [{"role": "robot", "content": "5"}]},
            "`messages`[0] must be an object whose `role` is one of",
        ),
        (
            "demonstrations",
            {"messages": [ASKED, {"role": "assistant"}]},
            "`messages`[1] must have `content` or `tool_calls`",
        ),
        ("demonstrations", {"prompt": "2+3?", "completion": " "}, "`completion` must be a non-empty text"),
        (
            "demonstrations",
            {"prompt": "2+3?", "completion": [assistant("5"), ASKED]},
            "`completion` ends with a message of role user",
        ),
        ("demonstrations", "[1, 2]", "expected an object, got list"),
        ("demonstrations", "{", "not JSON"),
        (
            "pairs",
            {"prompt": "2+3?", "completion": "5"},
            "expected `chosen` and `rejected`; the row has `prompt`, `completion`",
        ),
        ("pairs", {"chosen": "5", "rejected": "6"}, "`prompt` is missing, and `chosen` is not a whole conversation"),
        (
            "pairs",
            {"prompt": "2+3?", "chosen": "5", "rejected": "5"},
            "`chosen` and `rejected` are the same; leave the row out",
        ),
        (
            "pairs",
            {"chosen": [ASKED, assistant("5")], "rejected": [ASKED, assistant("5"), user("?"), assistant("6")]},
            "one of `chosen` and `rejected` is a prefix of the other",
        ),
    ],
)
def test_a_row_that_is_no_such_example_is_named_with_what_is_wrong(file, kind, row, complaint):
    path = file({"prompt": "1+1?", "completion": "2", "chosen": "2", "rejected": "3"}, row)
    examples = opened(path, kind).train
    with pytest.raises(SetupError) as caught:
        all_of(examples)
    assert str(caught.value).startswith(f"{path}, row 2: ")
    assert complaint in str(caught.value)


def test_a_column_that_is_not_there_is_named(file):
    with pytest.raises(
        SetupError, match=r"row 1: task.columns names `instruction`; the row has `prompt`, `completion`"
    ):
        only(file({"prompt": "2+3?", "completion": "5"}), prompt="instruction")


def test_rows_held_out_and_others_with_their_prompt_are_not_trained_on(file):
    rows = [{"prompt": f"{number % 10}+1?", "completion": str(number)} for number in range(30)]
    path = file(*rows)
    found = opened(path, held_out=2, seed=5)
    kept = {example.conversations[0].messages[0]["content"] for example in all_of(found.held_out)}
    trained = {example.conversations[0].messages[0]["content"] for example in all_of(found.train)}
    assert len(found.held_out) == 2
    assert not kept & trained
    assert len(found.train) == 30 - 3 * len(kept)
    assert all_of(opened(path, held_out=2, seed=5).held_out) == all_of(found.held_out)


def test_a_second_file_may_be_held_out(file):
    train = file({"prompt": "1+1?", "completion": "2"}, {"prompt": "2+3?", "completion": "5"})
    kept = file({"prompt": "2+3?", "completion": "five"}, name="kept.jsonl")
    found = opened(train, held_out=kept)
    assert [example.conversations[0].messages[1]["content"] for example in all_of(found.train)] == ["2"]
    with pytest.raises(RecipeError, match="every prompt of"):
        opened(kept, held_out=train)


def test_more_than_there_is_cannot_be_held_out(file):
    with pytest.raises(RecipeError, match=r"`task.held_out`: found 2, but .* has 2 rows"):
        opened(file({"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}), held_out=2)


def test_pairs_made_here_prefer_the_worked_answer_that_is_right():
    examples = arithmetic_examples("pairs", "train", 400, seed=3)
    direct = 0
    for problem, example in zip(problems("train", 3), examples, strict=False):
        chosen, rejected = (conversation.messages[-1]["content"] for conversation in example.conversations)
        assert chosen == problem.answer
        direct += rejected == problem.direct_answer
        assert rejected == problem.direct_answer or ("<<" in rejected and not rejected.endswith(problem.direct_answer))
    assert 160 < direct < 240
    assert examples == arithmetic_examples("pairs", "train", 400, seed=3)
    assert examples != arithmetic_examples("pairs", "train", 400, seed=4)


@pytest.mark.parametrize("kind", ["demonstrations", "pairs"])
def test_what_is_held_out_here_is_the_same_for_every_seed_and_never_trained_on(kind):
    one, other = opened("arithmetic", kind, seed=1, held_out=50), opened("arithmetic", kind, seed=2, held_out=50)
    assert all_of(one.held_out) == all_of(other.held_out)
    assert len(one.held_out) == 50
    trained = {example.conversations[0].messages[0]["content"] for example in all_of(one.train)}
    assert not trained & {example.conversations[0].messages[0]["content"] for example in all_of(one.held_out)}
