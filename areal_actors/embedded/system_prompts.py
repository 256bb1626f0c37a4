"""Text around a question, such as agents add it: system prompts of all lengths, and rephrasing.

Demonstrations include it, so that a small model learns to find the question below the text of any framework. Much of it
is random, since the text of frameworks is unknown.
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
"""Templates of questions; the first is the plain one."""
USUAL_SHARE = 0.6
"""Share of questions that are not rephrased."""
NO_PROMPT_SHARE, LONG_PROMPT_SHARE = 0.1, 0.35
"""Shares of conversations without a system prompt, and with a random one; the others have a predefined one."""
SHORTEST_PROSE, LONGEST_PROSE = 15, 400
MADE_UP_SHARE = 0.15
"""Share of made-up words in random prose."""

WORDS = """
a about after agent all also always an and answer any are as ask at be because before below but by call can case change
check clear code comes complete correct could data date default describe details do does each either end error every
example explain fail field file final find first follow for format from function give given good guide have help here
how if important in input instructions into is it its keep know last like list long look make many may message model
more most must name need never next no not note now number object of on once one only or order other out output over
part people person plan please point possible problem process provide question read reason report request require
response result return right rule same say search see send set should show simple so some state step stop string such
sure system take task tell text than that the their them then there these they thing think this time to tool topic true
try type under until up use user value very wait want was way what when where which while who will with without word
work world would write wrong year you your
""".split()  # noqa: SIM905 - a list would take three pages
SYLLABLES = "ba co den fi gra hu ist jo kel lum mo nor os per qua ren sti tor ux vy".split()  # noqa: SIM905 - as above


def prose(rng: random.Random, words: int) -> str:
    """Returns meaningless sentences, headings and lists of this many words."""
    parts: list[str] = []
    while words > 0:
        length = min(words, rng.randint(3, 14))
        words -= length
        sentence = " ".join(_word(rng) for _ in range(length)).capitalize()
        if rng.random() < 0.1:
            sentence += f" {rng.randrange(1000)}"
        parts += rng.choice(
            (
                ("", ". "),
                ("", ". "),
                ("", ". "),
                ("", ".\n\n"),
                ("- ", "\n"),
                ("## ", "\n"),
                ("", ":\n"),
                ("1. ", ".\n"),
            )
        )
        parts.insert(-1, sentence)
    return "".join(parts).strip()


def system_prompt(rng: random.Random) -> str:
    """Returns a random system prompt: none, a short one, or long random prose."""
    kind = rng.random()
    if kind < NO_PROMPT_SHARE:
        return ""
    if kind < 1 - LONG_PROMPT_SHARE:
        return rng.choice(SYSTEM_PROMPTS)
    words = round(SHORTEST_PROSE * (LONGEST_PROSE / SHORTEST_PROSE) ** rng.random())
    return rng.choice(("", ASSISTANT + " ")) + prose(rng, words)


def rephrase(question: str, rng: random.Random) -> str:
    """Returns the question as an agent may phrase it."""
    return question if rng.random() < USUAL_SHARE else rng.choice(QUESTIONS).format(question=question)


def _word(rng: random.Random) -> str:
    if rng.random() < MADE_UP_SHARE:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    return rng.choice(WORDS)
