"""Word problems of two steps, as a `verifiers` environment: one turn, rewarded for the right number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["WordProblemsTaskset"]


class WordProblemsConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    path: Path = Path(__file__).parent / "tasks" / "word_problems.jsonl"
    """A file of rows with `question` and `answer`, a number."""


class WordProblemData(vf.TaskData):
    """A problem and its result."""

    answer: str


class WordProblem(vf.Task[WordProblemData]):
    """A problem with its reward and its metric."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """1 if the last number of the answer is the result."""
        return float(numbers_in(trace.last_reply)[-1:] == [self.data.answer])

    @vf.metric
    async def shows_work(self, trace: vf.Trace) -> float:
        """1 if the answer has a worked step."""
        return float("=" in (trace.last_reply or ""))


class WordProblemsTaskset(vf.Taskset[WordProblem, WordProblemsConfig]):
    """The problems of a file."""

    def load(self) -> Iterator[WordProblem]:
        """The problems, in the order of the file."""
        for line in self.config.path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield WordProblem(WordProblemData(prompt=row["question"], answer=row["answer"]), self.config.task)


def numbers_in(text: str | None) -> list[str]:
    """Whole numbers of a text."""
    return re.findall(r"-?\d+", (text or "").replace(",", ""))
