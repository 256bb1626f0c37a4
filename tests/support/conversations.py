"""Random conversations over real chat templates: a model that writes as its family does, and a client that sends things
back.

`python tests/support/conversations.py FOLDER_OF_TEMPLATES` prints what became of the turns, family by family.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from support.conversation_families import MARKS, TOOLS, family

from areal_actors.core.errors import RequestError
from areal_actors.core.values import SamplingParams, TokenColumns, Trajectory
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion import callable_tools
from areal_actors.gateway.completion_check import PublishedVersions
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.conversations.conversation import prompt_for
from areal_actors.gateway.conversations.kept_messages import unpack_json
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.template_window import SENTINEL
from areal_actors.gateway.conversations.turns import path_to, token_ids_of
from areal_actors.gateway.settings import KEEP_REASONING, GatewaySettings
from areal_actors.gateway.template_settings import apply_template_settings
from areal_actors.messages import Generated, ModelRequest
from areal_actors.sequences.build import apply_rewards, sequences_of
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.probes import RESULT, Probe, ProbeCall, common_prefix, without_open_mark

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


class Talk:
    """One random session."""

    vocabulary = WORDS
    reasoning_share = 0.3

    def __init__(self, chat: ChatTokenizer, continuations: Continuations, seed: int) -> None:
        self.chat, self.continuations = chat, continuations
        self.dice = random.Random(seed)
        self.turns = {}
        self.became = Counter()
        self.calls = 0
        self.stops = [chat.decode([token], skip_special=False) for token in chat.stop_ids]
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
                messages = [
                    {"role": "system", "content": self.words()},
                    *[one for one in messages if one["role"] != "system"],
                ]
        self.check_sequences()
        return self.became

    def words(self) -> str:
        return " ".join(self.dice.choice(self.vocabulary) for _ in range(self.dice.randint(1, 4)))

    def call(self, messages: list[dict]) -> str | None:
        request = ModelRequest(session="s", messages=tuple(messages), tools=self.tools)
        try:
            prompt = prompt_for(SessionTurns(self.turns.values()), request, self.continuations)
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
        choice.add_tokens(
            Generated(
                columns=TokenColumns.of(ids, [-0.5] * len(ids), [len(self.turns)] * len(ids)), finish_reason=reason
            )
        )
        _, turn = choice.finish(last=True)
        assert turn.interaction.completion.ids_array().tolist() == ids
        self.turns[name] = turn
        self.transcripts[name] = [*messages, self.sent_back(turn.answer)]
        return name

    def check_prompt(self, prompt, messages: list[dict]) -> None:
        """Extended exactly, or split with a reason; and never a text that the template does not write."""
        text = self.chat.decode(np.frombuffer(prompt.token_ids, "<u4").tolist(), skip_special=False)
        suffix = prompt.suffix_text or self.chat.decode(
            np.frombuffer(prompt.suffix_ids, "<u4").tolist(), skip_special=False
        )
        if prompt.prefix:
            assert prompt.prefix == prompt.parent
            path = path_to(prompt.prefix, self.turns)
            assert prompt.token_ids == token_ids_of(path) + prompt.suffix_ids
            effective = [message for one in path for message in (*unpack_json(one.prompt.messages), one.answer)]
            new = messages[len(effective) :]
            whole = self.chat.render([*effective, *new], self.tools)
            if not whole.endswith(suffix) and self.continuations.kept and not effective[-1].get("tool_calls"):
                assert not effective[-1].get("content")
                whole = self.chat.render(
                    [*effective[:-1], {"role": "assistant", "content": SENTINEL}, *new], self.tools
                )
            assert whole.endswith(suffix), "what follows the answer is what the template writes"
            last = self.chat.decode(path[-1].interaction.completion.ids_array().tolist(), skip_special=False)
            assert not any(last.endswith(stop) and suffix.startswith(stop) for stop in self.stops), (
                "a stop token is not repeated"
            )
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
            text = self.written(self.chat.render(messages, self.tools), messages, answer)
        except RequestError:
            text = ""
        text = text or answer["content"] or "yes"
        ends = [at + len(stop) for stop in self.stops if (at := text.find(stop)) >= 0 and text != stop]
        text = text[: min(ends)] if ends else text + self.stops[-1 if answer.get("tool_calls") else 0]
        if self.dice.random() < 0.2:
            text = text.replace('": ', '":')
        if self.dice.random() < 0.1:
            text = text.replace("}", "", 1)
        if self.dice.random() < 0.1 and len(text) > 3:
            return text[: self.dice.randint(1, len(text) - 1)], "length"
        return text, "stop"

    def written(self, opened: str, messages: list[dict], answer: dict) -> str:
        """An answer after this prompt, with the reasoning that the prompt has opened."""
        answered = self.chat.render([*messages, answer], self.tools, add_generation_prompt=False)
        if answered.startswith(opened) and len(answered) > len(opened):
            return answered[len(opened) :]
        bare = {key: value for key, value in answer.items() if key != "reasoning_content"}
        if calls := answer.get("tool_calls"):
            probed = [
                ProbeCall(one["function"]["name"], json.loads(one["function"]["arguments"]), one["id"]) for one in calls
            ]
            results = [{"role": "tool", "tool_call_id": one.id, "name": one.name, "content": RESULT} for one in probed]
            whole = self.chat.render([*messages, bare, *results], self.tools, add_generation_prompt=False)
            text = whole[len(without_open_mark(common_prefix(opened, whole))) :].partition(RESULT)[0]
            body = Probe(self.chat.template, self.stops, self.tools)._cut([text], probed)
        else:
            answered = self.chat.render([*messages, bare], self.tools, add_generation_prompt=False)
            body = answered[len(common_prefix(opened, answered)) :]
        form = self.chat.format
        if form.opens_reasoning(opened):
            closing = form.reasoning[0].closing
            return f"{answer.get('reasoning_content', 'hm')}\n{closing}\n\n{body.rpartition(closing)[2].lstrip()}"
        return body

    def answer(self) -> dict:
        answer: dict = {"role": "assistant", "content": self.words()}
        if self.dice.random() < self.reasoning_share:
            answer["reasoning_content"] = self.words().strip()
        if self.tools and self.dice.random() < 0.6:
            answer["content"] = self.dice.choice(("", "Let me see."))
            answer["tool_calls"] = [self.tool_call() for _ in range(self.dice.choice((1, 1, 2)))]
        return answer

    def tool_call(self) -> dict:
        tool = self.dice.choice(self.tools)["function"]["name"]
        arguments = (
            {"expression": "3 + 4"}
            if tool == "calculator"
            else {"query": self.words(), "limit": self.dice.randint(0, 9)}
        )
        self.calls += 1
        return {
            "id": f"call{self.calls:05d}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments)},
        }

    def tokens(self, text: str) -> list[int]:
        """Ids that the tokenizer itself would often not choose."""
        stop = next((stop for stop in self.stops if text.endswith(stop)), "")
        body = text.removesuffix(stop)
        inside = {
            place
            for mark in MARKS.finditer(body)
            if self.chat.special_id(mark[0])
            for place in range(mark.start() + 1, mark.end())
        }
        places = [place for place in range(1, len(body)) if place not in inside]
        cuts = sorted(self.dice.sample(places, min(len(places), self.dice.choice((0, 1, 3)))))
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
                call["function"]["arguments"] = json.dumps(
                    json.loads(call["function"]["arguments"]), sort_keys=True, separators=(",", ":")
                )
        return sent

    def next_messages(self, answer: dict) -> list[dict]:
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": self.words()}
            for call in answer.get("tool_calls", ())
        ]
        return (
            results if results and self.dice.random() < 0.9 else [*results, {"role": "user", "content": self.words()}]
        )

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
            (index, token)
            for index, turn in enumerate(self.turns.values())
            for token in turn.interaction.completion.ids_array().tolist()
        )
        assert trained == sampled
        leaves = {turn.interaction.id for turn in self.turns.values()} - {
            turn.interaction.prefix for turn in self.turns.values()
        }
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
    lines = [
        "| template | turns | extended exactly | roots | split, and why | refused by the template |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.jinja")):
        became = converse(path.read_text(encoding="utf-8"), count)
        turns = became.total()
        later = turns - became["root"] - became["refused by the template"]
        splits = [
            f"{100 * number / max(later, 1):.1f} % {why.removeprefix('split: ')}"
            for why, number in became.items()
            if "split" in why
        ]
        cells = (
            path.stem,
            turns,
            f"{100 * became['extended'] / max(later, 1):.1f} %",
            became["root"],
            "; ".join(splits),
        )
        lines.append("| " + " | ".join(map(str, (*cells, became["refused by the template"]))) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1]), 600))
