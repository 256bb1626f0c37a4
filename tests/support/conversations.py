"""Random conversations over real chat templates: a model that writes as its family does, and a client that sends things back.

`python tests/support/conversations.py FOLDER_OF_TEMPLATES` prints what became of the turns, family by family.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from areal_actors.core.errors import RequestError
from areal_actors.core.settings import KEEP_REASONING, GatewaySettings
from areal_actors.core.values import SamplingParams, TokenColumns, Trajectory
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion import callable_tools
from areal_actors.gateway.completion_check import PublishedVersions
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.conversations.conversation import prompt_for
from areal_actors.gateway.conversations.turns import path_to, token_ids_of
from areal_actors.gateway.template_settings import apply_template_settings
from areal_actors.messages import Generated, ModelRequest
from areal_actors.sequences.build import apply_rewards, sequences_of
from areal_actors.tokenization.tokenizer import ChatTokenizer

MARKS = re.compile(r"<\|[^|<>{} ]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[/?[A-Z_]{4,}\]")
STOPS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>")
STOPS += ("<|endoftext|>", "</s>", "<|user|>", "<|observation|>")
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = (
    "plain words",
    "3 + 4 = 7",
    "e\u0301 composed",
    "日本語のテキスト",
    "🙂👩\u200d👧 zwj",
    "שלום",
    "  spaces  ",
    "line\nbreak\n\n",
    "tab\there",
)
WORDS += (
    "<|im_end|> forged",
    "<tool_call>",
    "</think>",
    '{"name": "f"}',
    "{{ messages }}",
    "\u00a0nbsp",
    "﷽",
    "'quoted' \"double\"",
    "a\\b",
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Works an expression out.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds a passage.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    },
)


@cache
def byte_pairs(marks: tuple[str, ...]) -> Tokenizer:
    """A byte-level BPE of two thousand tokens, learnt from this repository's documents; marks are special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "docs").glob("*.md"))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=list(marks), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def family(template: str) -> ChatTokenizer:
    """A tokenizer with this chat template and its marks."""
    marks = tuple(sorted({*MARKS.findall(template), *STOPS, "<s>"}))
    tokenizer = byte_pairs(marks)
    stops = [tokenizer.token_to_id(mark) for mark in STOPS]
    return ChatTokenizer(tokenizer, template, {"bos_token": "<s>", "eos_token": "</s>"}, stops)


class Talk:
    """One random session."""

    def __init__(self, chat: ChatTokenizer, continuations: Continuations, seed: int) -> None:
        self.chat, self.continuations = chat, continuations
        self.dice = random.Random(seed)
        self.turns = {}
        self.became = Counter()
        self.tools = TOOLS[: self.dice.choice((0, 0, 1, 2))]
        self.transcripts = {}
        """Messages up to and with each answer, as the client keeps them."""

    def run(self) -> Counter:
        """Some calls, branches and changes; then the rows."""
        messages = [{"role": "system", "content": self.words()}] if self.dice.random() < 0.5 else []
        messages.append({"role": "user", "content": self.words()})
        for _ in range(self.dice.randint(2, 7)):
            name = self.call(messages)
            if name is None:
                break
            if self.dice.random() < 0.12:
                name = self.dice.choice(list(self.turns))
            messages = [*self.transcripts[name], *self.next_messages(self.turns[name].answer)]
            if self.dice.random() < 0.05:
                messages = [{"role": "system", "content": self.words()}, *[one for one in messages if one["role"] != "system"]]
        self.check_sequences()
        return self.became

    def words(self) -> str:
        return " ".join(self.dice.choice(WORDS) for _ in range(self.dice.randint(1, 4)))

    def call(self, messages: list[dict]) -> str | None:
        request = ModelRequest(session="s", messages=tuple(messages), tools=self.tools)
        try:
            prompt = prompt_for(self.turns, request, self.continuations)
        except RequestError:
            self.became["refused by the template"] += 1
            return None
        self.check_prompt(prompt, messages)
        name = f"call-{len(self.turns) + 1}"
        choice = Choice(
            name,
            0,
            prompt,
            SamplingParams(),
            self.chat,
            callable_tools(request),
            stream=False,
            logprobs=False,
            published=PublishedVersions(len(self.turns)),
        )
        text, reason = self.sampled(messages)
        ids = self.tokens(text)
        choice.add_tokens(Generated(columns=TokenColumns.of(ids, [-0.5] * len(ids), [len(self.turns)] * len(ids)), finish_reason=reason))
        _, turn = choice.finish(last=True)
        assert turn.interaction.completion.ids_array().tolist() == ids
        self.turns[name] = turn
        self.transcripts[name] = [*messages, self.sent_back(turn.answer)]
        return name

    def check_prompt(self, prompt, messages: list[dict]) -> None:
        """Extended exactly, or split with a reason; and never a text that the template does not write."""
        text = self.chat.decode(np.frombuffer(prompt.token_ids, "<u4").tolist(), skip_special=False)
        suffix = prompt.suffix_text or self.chat.decode(np.frombuffer(prompt.suffix_ids, "<u4").tolist(), skip_special=False)
        if prompt.prefix:
            assert prompt.prefix == prompt.parent
            path = path_to(prompt.prefix, self.turns)
            assert prompt.token_ids == token_ids_of(path) + prompt.suffix_ids
            effective = [message for one in path for message in (*msgspec.json.decode(one.prompt.messages), one.answer)]
            effective += messages[len(effective) :]
            assert self.chat.render(effective, self.tools).endswith(suffix), "what follows the answer is what the template writes"
            self.became["extended"] += 1
        else:
            rendered = self.chat.render(messages, self.tools)
            assert suffix == rendered
            assert text == rendered or not self.chat.is_lossless(rendered)
            continues = any(self.continues(name, messages) for name in self.turns)
            assert not continues or (prompt.prefix_break_reason and prompt.parent), (
                "a call that continues another, but not its tokens, says why"
            )
            self.became[f"split: {prompt.prefix_break_reason}" if continues else "root"] += 1

    def continues(self, name: str, messages: list[dict]) -> bool:
        transcript = self.transcripts[name]
        return len(transcript) < len(messages) and messages[: len(transcript)] == transcript

    def sampled(self, messages: list[dict]) -> tuple[str, str]:
        """An answer as a model of this family writes it, now and then in a form of its own, cut or spoilt."""
        answer = self.answer()
        try:
            opened = self.chat.render(messages, self.tools)
            answered = self.chat.render([*messages, answer], self.tools, add_generation_prompt=False)
        except RequestError:
            opened, answered = "", ""
        text = answered[len(opened) :] if opened and answered.startswith(opened) else f"{answer['content'] or 'yes'}<|im_end|>"
        ends = [at + len(stop) for stop in STOPS if (at := text.find(stop)) >= 0 and text != stop]
        text = text[: min(ends)] if ends else text + "</s>"
        if self.dice.random() < 0.2:
            text = text.replace('": ', '":')
        if self.dice.random() < 0.1:
            text = text.replace("}", "", 1)
        if self.dice.random() < 0.1 and len(text) > 3:
            return text[: self.dice.randint(1, len(text) - 1)], "length"
        return text, "stop"

    def answer(self) -> dict:
        answer: dict = {"role": "assistant", "content": self.words()}
        if self.dice.random() < 0.3:
            answer["reasoning_content"] = self.words().strip()
        if self.tools and self.dice.random() < 0.6:
            answer["content"] = self.dice.choice(("", "Let me see."))
            answer["tool_calls"] = [self.tool_call() for _ in range(self.dice.choice((1, 1, 2)))]
        return answer

    def tool_call(self) -> dict:
        tool = self.dice.choice(self.tools)["function"]["name"]
        arguments = {"expression": "3 + 4"} if tool == "calculator" else {"query": self.words(), "limit": self.dice.randint(0, 9)}
        return {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}

    def tokens(self, text: str) -> list[int]:
        """Ids that the tokenizer itself would often not choose."""
        stop = next((stop for stop in STOPS if text.endswith(stop)), "")
        body = text.removesuffix(stop)
        cuts = sorted(self.dice.sample(range(1, len(body)), min(len(body) - 1, self.dice.choice((0, 1, 3))))) if len(body) > 1 else []
        pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        return [token for piece in [*pieces, stop] for token in self.chat.encode(piece)] or self.chat.encode("</s>")

    def sent_back(self, answer: dict) -> dict:
        """The answer as one client or another returns it."""
        sent = json.loads(json.dumps(answer))
        if self.dice.random() < 0.4:
            sent.pop("reasoning_content", None)
        if self.dice.random() < 0.2:
            sent["content"] = [{"type": "text", "text": sent["content"]}] if sent["content"] else None
        for call in sent.get("tool_calls", ()):
            if self.dice.random() < 0.3:
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True, separators=(",", ":"))
        return sent

    def next_messages(self, answer: dict) -> list[dict]:
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": self.words()}
            for call in answer.get("tool_calls", ())
        ]
        return results if results and self.dice.random() < 0.9 else [*results, {"role": "user", "content": self.words()}]

    def check_sequences(self) -> None:
        """Every sampled token is trained once, as it was sampled, after the very tokens that the model had seen."""
        if not self.turns:
            return
        interactions = apply_rewards([turn.interaction for turn in self.turns.values()], 1.0, {})
        trajectory = Trajectory(episode="0.0", group="0", attempt=1, task="t", reward=1.0, interactions=interactions)
        rows = sequences_of(trajectory, 0, 0)
        trained = Counter(
            (int(version), int(token))
            for row in rows
            for version, token in zip(row.versions[row.loss_mask], row.token_ids[row.loss_mask], strict=True)
        )
        sampled = Counter(
            (index, token) for index, turn in enumerate(self.turns.values()) for token in turn.interaction.completion.ids_array().tolist()
        )
        assert trained == sampled
        leaves = {turn.interaction.id for turn in self.turns.values()} - {turn.interaction.prefix for turn in self.turns.values()}
        paths = [token_ids_of(path_to(name, self.turns)) for name in self.turns if name in leaves]
        assert [row.token_ids.astype("<u4").tobytes() for row in rows] == paths


def converse(template: str, count: int, seed: int = 0, *, keep_reasoning: bool = False) -> Counter:
    """Counts of the outcomes of turns, over `count` conversations."""
    chat = family(template)
    tested = apply_template_settings(chat, GatewaySettings(chat_template=KEEP_REASONING if keep_reasoning else ""))
    continuations = Continuations(chat, tested.kept)
    return sum((Talk(chat, continuations, seed + number).run() for number in range(count)), Counter())


def table(folder: Path, count: int) -> str:
    """A row per template."""
    lines = ["| template | turns | extended exactly | roots | split, and why | refused by the template |", "|---|---|---|---|---|---|"]
    for path in sorted(folder.glob("*.jinja")):
        became = converse(path.read_text(encoding="utf-8"), count)
        turns = became.total()
        later = turns - became["root"] - became["refused by the template"]
        splits = [f"{100 * number / max(later, 1):.1f} % {why.removeprefix('split: ')}" for why, number in became.items() if "split" in why]
        cells = (path.stem, turns, f"{100 * became['extended'] / max(later, 1):.1f} %", became["root"], "; ".join(splits))
        lines.append("| " + " | ".join(map(str, (*cells, became["refused by the template"]))) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1]), 600))
