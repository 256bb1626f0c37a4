"""Constrained decoding: whatever the tokens, what comes out obeys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.embedded.constraints import CACHE_SIZE, Grammars
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.grammar import Grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["add", "multiply"]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "numbers"],
    "additionalProperties": False,
}
MORE = 40
"""Ids that the model has and the tokenizer has not."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.train_from_iterator(
        [json.dumps({"name": "multiply", "numbers": [1, 23, 456]}), "a world of numbers, naturally"] * 20,
        trainers.BpeTrainer(
            vocab_size=320,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<pad>", "<end>", "<other end>"],
            show_progress=False,
        ),
    )
    marks = ["<tool_call>", "</tool_call>", "[CALLS]"]
    tokens.add_tokens([AddedToken(mark, special=mark.startswith("["), normalized=False) for mark in marks])
    tokens.save(str(folder / "tokenizer.json"))
    Path(folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    return ChatTokenizer.load(folder)


@pytest.fixture(scope="module")
def grammars(tokenizer: ChatTokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.vocabulary_size + MORE)


def wandering(
    grammars: Grammars, tokenizer: ChatTokenizer, constraint: Constraint, seed: int, most: int = 400
) -> list[int]:
    """Tokens of a completion that takes any allowed one, up to but without its end."""
    numbers = np.random.default_rng(seed)
    matcher, taken = grammars.matcher(constraint), []
    while len(taken) < most:
        allowed = np.flatnonzero(matcher.allowed_mask())
        token_id = int(numbers.choice(allowed))
        if token_id in tokenizer.stop_ids:
            return taken
        matcher.accept_tokens([token_id])
        taken.append(token_id)
    raise AssertionError(f"no end in sight: {tokenizer.decode(taken, skip_special=False)}")


def test_any_walk_along_allowed_tokens_gives_json_of_the_schema(grammars: Grammars, tokenizer: ChatTokenizer) -> None:
    constraint = Constraint(kind="json_schema", text=json.dumps(SCHEMA))
    spellings = set()
    for seed in range(30):
        ids = wandering(grammars, tokenizer, constraint, seed)
        spellings.add(tuple(ids))
        decoded = json.loads(tokenizer.decode(ids, skip_special=False))
        assert set(decoded) == {"name", "numbers"}
        assert decoded["name"] in ("add", "multiply")
        assert all(isinstance(number, int) for number in decoded["numbers"])
        assert len(decoded["numbers"]) <= 3
    assert len(spellings) > 20


def test_a_completion_may_end_where_the_text_is_whole_and_must_where_nothing_can_follow(
    grammars: Grammars, tokenizer: ChatTokenizer
) -> None:
    stops = set(tokenizer.stop_ids)
    matcher = grammars.matcher(Constraint(kind="regex", text="ab?"))
    assert not stops & set(np.flatnonzero(matcher.allowed_mask()))
    matcher.accept_tokens(tokenizer.encode("a"))
    assert set(np.flatnonzero(matcher.allowed_mask())) == {*stops, *tokenizer.encode("b")}
    matcher.accept_tokens(tokenizer.encode("b"))
    assert set(np.flatnonzero(matcher.allowed_mask())) == stops


def test_a_regular_expression_is_matched_as_a_whole(grammars: Grammars, tokenizer: ChatTokenizer) -> None:
    pattern = r"(yes|no), [0-9]{1,4} (naïve|über) worlds?"
    for seed in range(10):
        text = tokenizer.decode(
            wandering(grammars, tokenizer, Constraint(kind="regex", text=pattern), seed), skip_special=False
        )
        assert re.fullmatch(pattern, text)


def test_marks_are_tokens_where_the_tokenizer_has_them_and_text_elsewhere(
    grammars: Grammars, tokenizer: ChatTokenizer
) -> None:
    number = {mark: tokenizer.tokenizer.token_to_id(mark) for mark in ("<tool_call>", "</tool_call>", "[CALLS]")}
    grammar = Grammar()
    parts = [
        grammar.delimiter("[CALLS]"),
        grammar.delimiter("<tool_call>"),
        grammar.schema({"const": "</tool_call> it is"}),
        grammar.delimiter("<none>"),
    ]
    for seed in range(5):
        ids = wandering(grammars, tokenizer, grammar.constraint(" ".join([*parts, "</tool_call>"])), seed)
        assert tokenizer.decode(ids, skip_special=False) == '[CALLS]<tool_call>"</tool_call> it is"<none></tool_call>'
        assert [ids[0], ids[1], ids[-1]] == [number["[CALLS]"], number["<tool_call>"], number["</tool_call>"]]
        assert [ids.count(mark) for mark in number.values()] == [1, 1, 1]


def test_free_text_never_holds_a_mark(grammars: Grammars, tokenizer: ChatTokenizer) -> None:
    allowed = grammars.matcher(Constraint(kind="regex", text=r"(.|\n)*")).allowed_mask()
    assert allowed.shape == (tokenizer.vocabulary_size + MORE,)
    assert not allowed[tokenizer.tokenizer.token_to_id("<pad>")]
    assert not allowed[tokenizer.tokenizer.token_to_id("<tool_call>")]
    assert not allowed[-MORE:].any()
    assert allowed[tokenizer.encode("world")[0]]
    assert all(allowed[stop] for stop in tokenizer.stop_ids)


def test_data_that_looks_like_a_mark_is_spelled_with_ordinary_tokens(
    grammars: Grammars, tokenizer: ChatTokenizer
) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "</tool_call> ✓"}}, "additionalProperties": False}
    constraint = Constraint(kind="json_schema", text=json.dumps(schema))
    decoded = [wandering(grammars, tokenizer, constraint, seed) for seed in range(8)]
    assert any("✓" in tokenizer.decode(ids) for ids in decoded)
    assert not any(tokenizer.tokenizer.token_to_id("</tool_call>") in ids for ids in decoded)


def test_a_completion_that_continues_elsewhere_is_followed_from_where_it_was(
    grammars: Grammars, tokenizer: ChatTokenizer
) -> None:
    constraint = Constraint(kind="json_schema", text=json.dumps(SCHEMA))
    ids = wandering(grammars, tokenizer, constraint, 3)
    whole = grammars.matcher(constraint)
    for cut in range(len(ids)):
        assert np.array_equal(grammars.matcher(constraint, ids[:cut]).allowed_mask(), whole.allowed_mask())
        whole.accept_tokens(ids[cut : cut + 1])
    with pytest.raises(RequestError, match="violates its own constraint") as refused:
        grammars.matcher(constraint, tokenizer.encode("[1]"))
    assert refused.value.field == "resumed_tokens"


def test_a_disallowed_token_is_refused_with_an_error(grammars: Grammars, tokenizer: ChatTokenizer) -> None:
    matcher = grammars.matcher(Constraint(kind="regex", text="a"))
    with pytest.raises(RequestError, match="doesn't satisfy the grammar"):
        matcher.accept_tokens(tokenizer.encode("b"))


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", '{"type": "obj"}', "JSON schema cannot be followed: Invalid type: obj"),
        ("json_schema", '{"type": ', "JSON schema cannot be followed"),
        ("json_schema", '{"type": "array", "contains": {}}', "contains"),
        ("regex", "(ab", "unclosed group"),
        ("lark", "start: other", 'unknown name: "other"'),
        ("lark", "start: <[5000]>", "5000"),
        ("regex", "a" * 1_000_001, "1000000 are read at most"),
    ],
)
def test_a_wrong_constraint_is_refused_in_words_that_help(grammars: Grammars, kind, text, message) -> None:
    with pytest.raises(RequestError) as refused:
        grammars.matcher(Constraint(kind=kind, text=text))
    assert message in str(refused.value)
    assert len(str(refused.value)) < 400
    assert refused.value.field == "response_format"


def test_a_tokenizer_that_names_no_end_allows_no_constraint(tokenizer: ChatTokenizer) -> None:
    endless = ChatTokenizer(tokenizer.tokenizer, "", {}, ())
    with pytest.raises(RequestError, match="end-of-sequence"):
        Grammars(endless, endless.vocabulary_size).matcher(Constraint(kind="regex", text="a"))


def test_compiled_constraints_are_kept_and_what_is_kept_is_bounded(tokenizer: ChatTokenizer) -> None:
    grammars = Grammars(tokenizer, tokenizer.vocabulary_size)
    for number in range(CACHE_SIZE + 20):
        for _ in range(2):
            grammars.matcher(Constraint(kind="regex", text=f"a{{{number + 1}}}")).accept_tokens(tokenizer.encode("a"))
    kept = grammars._compiled.cache_info()
    assert (kept.hits, kept.misses, kept.currsize) == (CACHE_SIZE + 20, CACHE_SIZE + 20, CACHE_SIZE)
