"""Wildcards, and names that can be part of a subject."""

from __future__ import annotations

import pytest

from areal_bus.subjects import check_key, check_pattern, check_run, check_token, matches


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        (">", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("*.*.c", "a.b.c", True),
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a", "a.b", False),
        ("*.>", "a.b.c", True),
        ("*.>", "a", False),
    ],
)
def test_wildcards_mean_what_they_mean_to_nats(pattern: str, subject: str, *, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@pytest.mark.parametrize("run", ["gsm8k-grpo", "run_2", "7"])
def test_a_run_can_be_named_with_letters_digits_and_dashes(run: str) -> None:
    assert check_run(run) == run


@pytest.mark.parametrize("run", ["", "My-run", "a.b", "a b", "-a", "a*", "a" * 64, "ä", "a\n"])
def test_other_run_names_are_refused_with_the_rule(run: str) -> None:
    with pytest.raises(ValueError, match=r"run name .*use 1 to 63 of a-z"):
        check_run(run)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">"])
def test_what_is_not_one_token_is_refused_by_its_owners_name(name: str) -> None:
    with pytest.raises(ValueError, match="consumer "):
        check_token("consumer", name)


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", "a b", "a.b*"])
def test_patterns_that_match_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|subject token"):
        check_pattern(pattern)


def test_keys_are_tokens_joined_by_dots() -> None:
    assert check_key("weights.latest") == "weights.latest"
    with pytest.raises(ValueError, match="reserved for the bus"):
        check_key("_position.gate")
