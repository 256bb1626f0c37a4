"""What agents put around a question: system prompts of all lengths, and words of their own.

Demonstrations are dressed in these, so that a small model learns to find the question below whatever a framework adds.
Much of it is made up at random, since what frameworks write cannot be foreseen.
"""

from __future__ import annotations

import random

ASSISTANT = "You are a helpful assistant."
SYSTEM_PROMPTS = (
    ASSISTANT,
    "You are a careful tutor. Answer the question.",
    "You solve word problems. End your answer with #### and the number.",
    "Be brief.",
    "You are an agent with access to tools. Use them when they help.",
    "Solve the problem. Use the tools where they help. End with `#### ` and the answer.",
    "Answer the user's question. If you do not know, say so.",
    "You are an expert in mathematics. Think step by step before you answer.",
)
QUESTIONS = (
    "{question}",
    "{question}\nEnd your answer with #### and the number.",
    "{question} Use the tools.",
    "{question} Think step by step.",
    "Question: {question}",
    "Solve this problem:\n\n{question}\n\nWrite the result after ####.",
)
"""Ways to put a question; the first is the usual one."""
USUAL_SHARE = 0.6
"""Questions that are put as they are."""
NO_PROMPT_SHARE, LONG_PROMPT_SHARE = 0.1, 0.35
"""Conversations without a system prompt, and with one of made-up prose; the others have one of the short ones."""
SHORTEST_PROSE, LONGEST_PROSE = 15, 400
MADE_UP_SHARE = 0.15
"""Words of the prose that belong to no language."""

WORDS = """
a about after agent all also always an and answer any are as ask at be because before below but by call can case change check
clear code comes complete correct could data date default describe details do does each either end error every example explain
fail field file final find first follow for format from function give given good guide have help here how if important in input
instructions into is it its keep know last like list long look make many may message model more most must name need never next
no not note now number object of on once one only or order other out output over part people person plan please point possible
problem process provide question read reason report request require response result return right rule same say search see send
set should show simple so some state step stop string such sure system take task tell text than that the their them then there
these they thing think this time to tool topic true try type under until up use user value very wait want was way what when
where which while who will with without word work world would write wrong year you your
""".split()  # noqa: SIM905 - three pages otherwise
SYLLABLES = (
    "ba",
    "co",
    "den",
    "fi",
    "gra",
    "hu",
    "ist",
    "jo",
    "kel",
    "lum",
    "mo",
    "nor",
    "os",
    "per",
    "qua",
    "ren",
    "sti",
    "tor",
    "ux",
    "vy",
)


def prose(rng: random.Random, words: int) -> str:
    """Sentences, headings and lists of so many words, that mean nothing."""
    said: list[str] = []
    while words > 0:
        length = min(words, rng.randint(3, 14))
        words -= length
        sentence = " ".join(_word(rng) for _ in range(length)).capitalize()
        if rng.random() < 0.1:
            sentence += f" {rng.randrange(1000)}"
        said += rng.choice((("", ". "), ("", ". "), ("", ". "), ("", ".\n\n"), ("- ", "\n"), ("## ", "\n"), ("", ":\n"), ("1. ", ".\n")))
        said.insert(-1, sentence)
    return "".join(said).strip()


def system_prompt(rng: random.Random) -> str:
    """A system prompt; often none, seldom a long one."""
    kind = rng.random()
    if kind < NO_PROMPT_SHARE:
        return ""
    if kind < 1 - LONG_PROMPT_SHARE:
        return rng.choice(SYSTEM_PROMPTS)
    words = round(SHORTEST_PROSE * (LONGEST_PROSE / SHORTEST_PROSE) ** rng.random())
    return rng.choice(("", ASSISTANT + " ")) + prose(rng, words)


def put(question: str, rng: random.Random) -> str:
    """The question as an agent might put it."""
    return question if rng.random() < USUAL_SHARE else rng.choice(QUESTIONS).format(question=question)


def _word(rng: random.Random) -> str:
    if rng.random() < MADE_UP_SHARE:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    return rng.choice(WORDS)
