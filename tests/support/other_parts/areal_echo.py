"""Parts for areal-actors: an engine that repeats the prompt, and one part of every other kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from areal_actors.core.errors import EngineError
from areal_actors.core.values import TokenColumns
from areal_actors.generation.engine import EngineCounters, TokenChunk, validate_prompt
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax, IncompleteCall, MalformedCall, ParsedCalls
from areal_actors.training.algorithms import Grpo


class EchoSettings(msgspec.Struct, forbid_unknown_fields=True):
    times: int = 2
    """Copies of the prompt."""


def find_problems(steps, sampling, generation):
    """Yields a problem if an echo would run for long."""
    if generation.engine == "echo" and steps > 1000:
        yield (
            ("steps",),
            f"found {steps}, but an echo has nothing to learn in {sampling.max_tokens} tokens; write at most 1000",
        )


class EchoEngine:
    abilities = frozenset({"seed"})
    settings = EchoSettings

    def __init__(self, model_folder, settings):
        tokenizer = ChatTokenizer.load(model_folder)
        self.vocabulary, self.context = tokenizer.vocabulary_size, settings.max_model_len
        self.times = msgspec.convert(settings.options, EchoSettings).times
        self.weight_version, self.tokens, self.running, self.closed = 0, 0, 0, False

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        validate_prompt(prompt_ids, sampling, resumed_tokens, self.vocabulary, self.context)
        prompt = list(prompt_ids[: len(prompt_ids) - resumed_tokens])
        whole = (prompt * self.times)[resumed_tokens:]
        ids = whole[: sampling.max_tokens]
        reason = "stop" if len(ids) == len(whole) else "length"
        self.running += 1
        versions = []
        try:
            for number, token in enumerate(ids):
                if self.closed:
                    raise EngineError(f"{request_id}: the engine is closed")
                versions.append(self.weight_version)
                self.tokens += 1
                if stream and number + 1 < len(ids):
                    yield TokenChunk(columns=TokenColumns.of([token], [0.0], versions[-1:]), finish_reason="")
        finally:
            self.running -= 1
        start = max(len(ids) - 1, 0) if stream else 0
        columns = TokenColumns.of(ids[start:], [0.0] * len(ids[start:]), versions[start:])
        yield TokenChunk(columns=columns, finish_reason=reason)

    async def load_weights(self, location, weight_version):
        self.weight_version = weight_version

    def take_counters(self):
        tokens, self.tokens = self.tokens, 0
        return EngineCounters(tokens=tokens, running=self.running)

    async def close(self):
        self.closed = True


class Brevity(msgspec.Struct, forbid_unknown_fields=True):
    most: int = 100
    """Characters from which the reward is 1."""

    def __call__(self, task, output):
        return min(len(output) / self.most, 1.0)


REWARD_EXAMPLES = {
    "brevity": [({"question": "?"}, "a" * 50, 0.5), ({"question": "?"}, "", 0.0), ({"question": "?"}, "b" * 300, 1.0)]
}
READER_EXAMPLES = {
    ".rows": (b"one|1\ntwo|2\n", [{"question": "one", "answer": "1"}, {"question": "two", "answer": "2"}])
}


def read_arrow(text, at, declared):
    name, arrow, rest = text[at + 2 :].partition("->")
    end = rest.find(">>")
    if not arrow or end < 0:
        raise IncompleteCall
    try:
        arguments = json.loads(rest[:end])
    except ValueError as error:
        raise MalformedCall(str(error), at) from error
    if not isinstance(arguments, dict) or not name.strip():
        raise MalformedCall("the arguments are no object", at)
    return ParsedCalls(len(text) - len(rest) + end + 2, (ToolCall(name=name.strip(), arguments=json.dumps(arguments)),))


ARROWS = CallSyntax(read_arrow, openings=("<<",), closing=">>")


TOOL_CALL_EXAMPLES = {
    "arrows": [('<<weather->{"place": "Ulm"}>>', "weather", {"place": "Ulm"}), ("<<stop->{}>>", "stop", {})],
}


class LinesTracker:
    def __init__(self, run):
        self.path = Path(run.folder) / "lines.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.place, self.sent, self.waiting = str(self.path), {}, []
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            row = json.loads(line)
            self.sent.update(dict.fromkeys(row["metrics"], row["step"]))

    def send(self, step, time, metrics):
        self.waiting.append(json.dumps({"step": step, "time": time, "metrics": dict(metrics)}) + "\n")

    def flush(self):
        with self.path.open("a") as file:
            file.writelines(self.waiting)
        self.waiting = []

    def finish(self, status, error):
        self.flush()


def read_rows(path: Path) -> Sequence[Mapping[str, str]]:
    return [dict(zip(("question", "answer"), line.split("|"), strict=True)) for line in path.read_text().splitlines()]


class Centered(Grpo, tag="centered"):
    scale_by_std: bool = False
    """Divide advantages by the standard deviation of the group."""


def count_runs(words: Sequence[str]) -> int:
    sys.stdout.write(f"{len(list(Path(words[0] if words else 'runs').glob('*/run.json')))} runs\n")
    return 0
