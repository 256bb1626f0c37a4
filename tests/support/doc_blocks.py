"""The code blocks of the documentation: their places, the directives of their comments, and the settings of a small
run.

A block with a language (`sh`, `toml`, `python`) is run as it stands; one without is a drawing or output. An HTML
comment directly above the fence may have directives, separated by semicolons:

    <!-- run: no, REASON -->                        illustrative: reason that it is not run here
    <!-- run: with steps=2 evaluation.tasks=0 -->   settings laid over those of the block, because they would take long
    <!-- run: over recipes/tools.toml -->           a fragment of TOML belongs to this recipe (default: the main one)
    <!-- run: for `some line` above -->             a fragment of Python replaces this line of the block above
    <!-- run: on 2 ranks -->                        torchrun starts it
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MAIN = "recipes/gsm8k_grpo.toml"
SMALL = (
    "profile=embedded",
    "warm_start.steps=2",
    "warm_start.tail_steps=0",
    "task.held_out=4",
    "evaluation.tasks=2",
    "evaluation.every_steps=0",
    "trainer.batch_size=2",
    "algorithm.group_size=4",
    "staleness_gate.max_concurrent=4",
)
"""Laid over whatever runs."""
SMALL_EXAMPLES = (
    "profile=embedded",
    "warm_start.steps=2",
    "warm_start.tail_steps=0",
    "task.held_out=4",
    "evaluation.tasks=2",
)
"""The same for what learns from examples."""
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>.*)$")
_MARK = re.compile(r"^<!-- run: (?P<directives>.*) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Line of its fence, counted from 1."""
    language: str
    text: str
    not_run: str = ""
    """Reason that it is illustrative."""
    settings: tuple[str, ...] = ()
    over: str = MAIN
    instead_of: str = ""
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def marked(self, directives: str) -> Block:
        """The block with the directives of the comment above it."""
        if directives.startswith("no, "):
            return replace(self, not_run=directives.removeprefix("no, "))
        made = self
        for part in directives.split("; "):
            word, _, rest = part.partition(" ")
            if word == "with":
                made = replace(made, settings=tuple(rest.split()))
            elif word == "over":
                made = replace(made, over=rest)
            elif word == "for" and (line := re.fullmatch(r"`(.+)` above", rest)):
                made = replace(made, instead_of=line[1])
            elif word == "on" and (ranks := re.fullmatch(r"(\d+) ranks", rest)):
                made = replace(made, ranks=int(ranks[1]))
            else:
                raise ValueError(
                    f"{self}: `{part}` is nothing that a comment above a block may say; see tests/support/doc_blocks.py"
                )
        return made


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        if opened := _FENCE.match(lines[number]):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == opened["fence"])
            text = "\n".join(line.removeprefix(opened["indent"]) for line in lines[number + 1 : end]) + "\n"
            block = Block(page, number + 1, opened["language"].strip(), text)
            mark = _MARK.match(lines[number - 1].strip()) if number else None
            found.append(block.marked(mark["directives"]) if mark else block)
            number = end
        number += 1
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def program(block: Block) -> str:
    """A Python block as a program: inserted into the one above where directed, its settings last in each
    `recipe(...)`."""
    text = block.text
    if block.instead_of:
        above = [
            other
            for other in BLOCKS
            if other.page == block.page and other.line < block.line and block.instead_of in other.text
        ][-1]
        line = next(line for line in above.text.splitlines() if line.strip() == block.instead_of)
        indent = line[: len(line) - len(line.lstrip())]
        text = above.text.replace(line, "\n".join(indent + own if own else "" for own in block.text.splitlines()))
    words = "".join(f", {word!r}" for word in (*SMALL, *block.settings))
    return re.sub(r"\brecipe\((\"[^)]*)\)", rf"recipe(\1{words})", text)
