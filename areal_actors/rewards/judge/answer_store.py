"""Answers of judges by their questions: a question is asked once, in a run, and over its recorded answers.

The key of an answer is a digest of all that the answer depends on: the model, the prompt, the form that is asked for
and the sampling parameters. Weights, aggregation and prices are not part of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import xxhash

from areal_actors.core.durable_files import append_line
from areal_actors.messages import JudgeAnswer

ANSWERS = "judge-answers.jsonl"
"""Name of the file with answers that no log has, beside the runs or in a run's folder."""
KEPT = 20_000
"""Answers that a reward worker keeps."""


def question_key(*parts: object) -> str:
    """Returns the digest of what an answer depends on, as hexadecimal text."""
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(parts, order="sorted"))


class AnswerStore:
    """The last answers, at most `size` of them; with a file, those in it and all new ones."""

    def __init__(self, answers: Iterable[JudgeAnswer] = (), *, file: Path | None = None, size: int = KEPT) -> None:
        """`answers`: those of a log. `file`: JSON lines, read now if it exists."""
        self._file, self._size = file, size
        self._answers: OrderedDict[str, JudgeAnswer] = OrderedDict()
        self._asked: dict[str, asyncio.Task[JudgeAnswer]] = {}
        for answer in (*answers, *_read_lines(file)):
            self._keep(answer)

    async def get(self, key: str, ask: Callable[[], Awaitable[JudgeAnswer]]) -> JudgeAnswer:
        """Returns the answer of this key, with 0 calls if it is known; calls that are under way are shared."""
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            return _without_cost(known)
        shared = key in self._asked
        if not shared:
            self._asked[key] = asyncio.create_task(self._ask(key, ask))
        answer = await asyncio.shield(self._asked[key])
        return _without_cost(answer) if shared else answer

    async def _ask(self, key: str, ask: Callable[[], Awaitable[JudgeAnswer]]) -> JudgeAnswer:
        """Ask, and keep the answer, also if the score that began it has ended meanwhile."""
        try:
            answer = await ask()
        finally:
            del self._asked[key]
        self._keep(answer)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            append_line(self._file, msgspec.json.encode(answer).decode())
        return answer

    def _keep(self, answer: JudgeAnswer) -> None:
        self._answers[answer.key] = answer
        while len(self._answers) > self._size:
            self._answers.popitem(last=False)


def _without_cost(answer: JudgeAnswer) -> JudgeAnswer:
    return msgspec.structs.replace(answer, calls=0, tokens=0, cost=0.0, seconds=0.0)


def _read_lines(file: Path | None) -> list[JudgeAnswer]:
    """Returns the answers of a file; a last line that was cut is left out."""
    if file is None or not file.is_file():
        return []
    decoder, answers = msgspec.json.Decoder(JudgeAnswer), []
    for line in file.read_bytes().splitlines():
        try:
            answers.append(decoder.decode(line))
        except msgspec.DecodeError:
            continue
    return answers
