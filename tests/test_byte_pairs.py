"""The fast executor against the tokenizers library: the same ids for every text, or it does not take over."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.conversation_families import byte_pairs
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from areal_actors.tokenization.byte_pairs import byte_characters, byte_pairs_of
from areal_actors.tokenization.tokenizer import ChatTokenizer

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
MARKS = ("<|im_start|>", "<|im_end|>", "<｜User｜>", "[INST]", "</s>")
PLAIN_MARKS = ("<tool_call>", "</tool_call>", "<think>")
CORPUS = [
    "the quick brown foxes' 12345 jumps, it's 3.14!\n\n  def f(x):\n\treturn x  # ok\r\n",
    "Größe naïve 你好世界 Привет 🙂👩‍👧 e\u0301",
] * 50


def split(expression):
    by = pre_tokenizers.Split(Regex(expression), "isolated")
    return pre_tokenizers.Sequence([by, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(pre_tokenizer, normalizer=None, marks=MARKS, plain_marks=PLAIN_MARKS, **bpe):
    tokenizer = Tokenizer(models.BPE(**bpe))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(marks),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in plain_marks])
    return tokenizer


FAMILIES = {
    "GPT-2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "Qwen": trained(split(QWEN), normalizers.NFC()),
    "Llama 3": trained(split(LLAMA_3)),
    "conversations": byte_pairs(MARKS),
}
SAME = {name: (tokenizer, byte_pairs_of(tokenizer)) for name, tokenizer in FAMILIES.items()}
PIECES = st.sampled_from(
    [
        *(
            *MARKS,
            *PLAIN_MARKS,
            "<|im_",
            "end|>",
            "<",
            "|>",
            "e\u0301",
            "\u0338",
            "\u0301",
            "\u200d",
            "  ",
            "\n\n",
            "\r\n",
            "\u00a0",
            "\u2028",
        ),
        *(
            "'S",
            "'ll",
            "’s",
            "12345",
            "٣٤",
            "½",
            "ﬁ",
            "\x00",
            "\x85",
            "ß",
            "日本",
            "🙂",
            "#",
            "=" * 9,
            "a" * 30,
            "\ufeff",
            "\u1100\u1161",
        ),
    ]
)
TEXTS = st.lists(st.text(max_size=12) | PIECES, max_size=8).map("".join)


@pytest.mark.parametrize("name", SAME)
def test_each_family_of_byte_level_tokenizers_has_the_fast_executor(name):
    assert SAME[name][1] is not None


@settings(max_examples=400, deadline=None)
@given(text=TEXTS)
@example("<|im_end|>\u0338")
@example("x<think>\u0338\u0301")
@example(" " * 2000 + "x")
def test_ids_and_bytes_are_those_of_the_library_for_any_text(text):
    text = text.encode(errors="replace").decode()
    for tokenizer, pairs in SAME.values():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert pairs.encode(text) == ids
        assert pairs.decode(ids).decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=False)
        assert pairs.is_lossless(text) <= (pairs.decode(ids).decode() == text)


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_a_conversation_that_grows_has_the_ids_of_the_library_though_its_earlier_pieces_are_kept(texts):
    conversation = ""
    for text in texts:
        conversation += f"{MARKS[0]}{text.encode(errors='replace').decode() * 30}{MARKS[1]}\n"
        for tokenizer, pairs in SAME.values():
            assert pairs.encode(conversation) == tokenizer.encode(conversation, add_special_tokens=False).ids


def test_no_more_pieces_are_kept_than_the_limit_and_none_of_extreme_length(monkeypatch):
    monkeypatch.setattr("areal_actors.tokenization.byte_pairs.KEPT_TOKENS", 4000)
    tokenizer = FAMILIES["Qwen"]
    pairs = byte_pairs_of(tokenizer)
    for number in range(200):
        text = f"{number} " * (1000 if number % 2 else 100)
        assert pairs.encode(text) == pairs.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
    assert 0 < pairs._kept.currsize <= 4000


def test_a_piece_that_is_not_expected_again_is_kept_from_the_second_time_on(monkeypatch):
    monkeypatch.setattr("areal_actors.tokenization.byte_pairs.SEEN_PIECES", 8)
    tokenizer = FAMILIES["Qwen"]
    pairs = byte_pairs_of(tokenizer)
    texts = [f"{number} {'word ' * 100}" for number in range(20)]

    def kept_after(*once):
        for text in once:
            assert pairs.encode(text, once=True) == tokenizer.encode(text, add_special_tokens=False).ids
        return [texts.index(piece) for piece in pairs._kept if piece in texts]

    assert kept_after(*texts[:3]) == []
    assert kept_after(texts[1]) == [1]
    assert kept_after(*texts[3:], texts[0]) == [1]  # it was forgotten meanwhile
    assert kept_after(texts[0], texts[0]) == [1, 0]
    assert len(pairs._seen | pairs._seen_before) <= 8


@given(st.lists(st.integers(0, 2000), max_size=30))
def test_any_ids_are_decoded_as_the_library_does_and_unknown_ones_left_out(ids):
    for tokenizer, pairs in SAME.values():
        assert pairs.decode(ids).decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=False)
        known = [number for number in ids if tokenizer.id_to_token(number) is not None]
        assert b"".join(map(pairs.token_bytes, ids)) == pairs.decode(known)


def test_a_special_token_stays_one_before_a_sign_that_would_change_its_last_letter():
    tokenizer, pairs = SAME["Qwen"]
    assert pairs.encode("<|im_end|>\u0338")[0] == tokenizer.token_to_id("<|im_end|>")


def test_a_text_that_the_expression_cannot_go_through_is_left_to_the_library():
    tokenizer, pairs = SAME["Qwen"]
    text = " " * 1_200_000 + "x"
    assert pairs.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def described(tokenizer, **model):
    whole = json.loads(tokenizer.to_str())
    whole["model"].update(model)
    return Tokenizer.from_str(json.dumps(whole))


@pytest.mark.parametrize(
    "marks",
    [("<a>", "<a>b"), ("<a>b", "<a>", "<a>c"), ("a", "ab", "b"), ("x<s>", "x", "zz"), ("<|a|>", "<|b|>", "<|a|><|b|>")],
)
def test_where_one_mark_begins_another_the_library_stays(marks):
    assert byte_pairs_of(trained(split(QWEN), marks=marks, plain_marks=())) is None


@given(st.sets(st.text("ab<", min_size=1, max_size=4), min_size=2, max_size=6))
def test_in_sorted_order_a_mark_that_begins_another_has_one_that_it_begins_beside_it(marks):
    contents = sorted(marks)
    beside = any(later.startswith(earlier) for earlier, later in pairwise(contents))
    assert beside == any(one != other and other.startswith(one) for one in marks for other in marks)


def test_a_tokenizer_that_does_more_stays_with_the_library():
    qwen = FAMILIES["Qwen"]
    flags = {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}
    for flag in flags:
        tokenizer = Tokenizer.from_str(qwen.to_str())
        tokenizer.add_tokens([AddedToken("<more>", **{"normalized": False, **flag})])
        assert byte_pairs_of(tokenizer) is None, flag
    assert byte_pairs_of(trained(split(QWEN), normalizers.NFKC())) is None
    assert byte_pairs_of(trained(pre_tokenizers.ByteLevel(add_prefix_space=True))) is None
    assert byte_pairs_of(trained(pre_tokenizers.Whitespace())) is None
    assert byte_pairs_of(described(qwen, dropout=0.1)) is None
    assert byte_pairs_of(Tokenizer(models.WordLevel({"a": 0}, "a"))) is None


def made_of(merges, extra=(), **options):
    """A byte-level tokenizer with exactly these merges, in this order; ids of merged tokens leave gaps."""
    vocabulary = {character: 3 * byte for byte, character in byte_characters().items()}
    for merge in merges:
        vocabulary.setdefault("".join(merge), 1000 + 7 * len(vocabulary))
    vocabulary |= {token: 90_000 + place for place, token in enumerate(extra)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **options))
    tokenizer.pre_tokenizer, tokenizer.decoder = split(QWEN), decoders.ByteLevel()
    return tokenizer


def test_ranks_may_have_gaps():
    tokenizer = made_of([("a", "b"), ("ab", "c"), ("c", "d")])
    pairs = byte_pairs_of(tokenizer)
    for text in ("abc", "abcd", "cdabcab", "bcd"):
        assert pairs.encode(text) == tokenizer.encode(text).ids


@pytest.mark.parametrize(
    ("merges", "extra"),
    [
        ([("b", "c"), ("a", "b"), ("ab", "c")], ()),  # abc is [a, bc] to the merges, one token to a lookup
        ([("a", "b")], ("xyz",)),  # no merge leads to xyz
        ([("a", "b"), ("x", "y"), ("ab", "xy")], ("q" * 3,)),
    ],
)
def test_a_token_that_merges_do_not_lead_to_leaves_the_tokenizer_to_the_library(merges, extra):
    assert byte_pairs_of(made_of(merges, extra)) is None


def test_merges_out_of_the_order_of_ids_leave_it_to_the_library():
    tokenizer = json.loads(made_of([("a", "b"), ("c", "d")]).to_str())
    tokenizer["model"]["merges"].reverse()
    assert byte_pairs_of(Tokenizer.from_str(json.dumps(tokenizer))) is None


def test_where_whole_words_are_looked_up_first_every_way_to_split_a_token_must_be_a_merge():
    """So Llama 3 has it: its merges were made from ranks."""
    merges = [("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")]
    tokenizer = made_of(merges, ignore_merges=True)
    pairs = byte_pairs_of(tokenizer)
    for text in ("abc", "abcabc", "bcab", "aabcc", "cabcab abc"):
        assert pairs.encode(text) == tokenizer.encode(text).ids
    assert byte_pairs_of(made_of(merges[:3], ignore_merges=True)) is None


@pytest.mark.parametrize("seed", range(40))
def test_for_any_merges_the_executor_agrees_or_does_not_take_over(seed):
    dice = random.Random(seed)
    tokens, merges = list("abc"), []
    for _ in range(dice.randint(2, 12)):
        merge = (dice.choice(tokens), dice.choice(tokens))
        if merge not in merges and (dice.random() < 0.3 or "".join(merge) not in tokens):
            merges.append(merge)
            tokens.append("".join(merge))
    tokenizer = made_of(merges)
    if (pairs := byte_pairs_of(tokenizer)) is None:
        return
    for _ in range(300):
        text = "".join(dice.choice("abc") for _ in range(dice.randint(1, 14)))
        assert pairs.encode(text) == tokenizer.encode(text).ids, (merges, text)


def test_a_file_that_cuts_texts_off_does_not_cut_prompts_off():
    tokenizer = trained(pre_tokenizers.Whitespace(), normalizers.NFC())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    chat = ChatTokenizer(tokenizer, "", {}, [0])
    assert len(chat.encode("one")) < 8
    assert len(chat.encode("one two three " * 10)) > 8
