"""Incremental chat templates: the text that a template appends after an answer.

That is the end of its turn and the new messages. Rendering a whole conversation costs more with every turn. Most
templates render the last messages independently of earlier ones, so a short placeholder history gives the same text.
Each template is tested for that when it is loaded, and long conversations are rendered in full from time to time as a
check.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.gateway.conversations.kept_reasoning import KeptReasoning
from areal_actors.gateway.conversations.message_equality import MessageDict, same_answer
from areal_actors.gateway.conversations.template_window import SENTINEL, local_features, renders_names, window
from areal_actors.gateway.conversations.turns import Prompt
from areal_actors.messages import ModelRequest
from areal_actors.tokenization.literal_marks import join_marks
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.vision.processor import VisionProcessor

KEPT_PROMPTS = 1024
"""Prompts that are kept for siblings: those of the groups in flight."""
LONGEST_KEPT_BYTES = 32 << 10
"""Size of a prompt, its ids and texts, from which it is not kept."""
CLOCK = "strftime_now"
"""Function with which chat templates write the date."""
CACHE_SIZE = 256
"""Number of rendered placeholder histories in the cache."""


class AnsweredConversation(NamedTuple):
    """Conversation through an answer of the model."""

    before: Sequence[MessageDict]
    """Messages before the answer."""
    answer: MessageDict
    sampled: str
    """Sampled text of the answer, special tokens included."""
    tools: Sequence[MessageDict]
    kwargs: Mapping[str, Any]
    """Variables of the chat template."""


class FirstPrompts:
    """The prompts used last of calls that continue no other, by digest of messages and settings.

    Siblings begin with the same messages.
    Each change is one operation of the dictionary, since long requests are handled beside the event loop.
    """

    def __init__(self, template: str) -> None:
        """`template`: source of the chat template.

        What one that writes the date renders is not the same later, and not kept.
        """
        self._keeps = CLOCK not in template
        self._kept: OrderedDict[bytes, Prompt] = OrderedDict()

    def get(self, digest: bytes) -> Prompt | None:
        """Returns the prompt of this digest, if it is kept."""
        if (prompt := self._kept.pop(digest, None)) is not None:
            self._kept[digest] = prompt
        return prompt

    def put(self, digest: bytes, prompt: Prompt) -> None:
        """Keep a prompt without prefix and images, unless it is long."""
        if self._keeps and len(prompt.suffix_ids) + len(prompt.messages) + len(prompt.tools) < LONGEST_KEPT_BYTES:
            self._kept[digest] = prompt
            if len(self._kept) > KEPT_PROMPTS:
                self._kept.popitem(last=False)


class Continuations:
    """Renders the new messages of conversations with one model's template."""

    def __init__(
        self, chat: ChatTokenizer, kept: KeptReasoning | None = None, vision: VisionProcessor | None = None
    ) -> None:
        """With `kept`, prompts keep reasoning that the template drops; with `vision` they may have images."""
        self.chat, self.kept, self.vision = chat, kept, vision
        self.first_prompts = FirstPrompts(chat.template.source)
        """Prompts of calls that continue no other."""
        self._openings: dict[tuple[frozenset[str], str], str] = {}
        self._local = local_features(chat.template)
        self._renders_names = renders_names(chat)

    def without_unseen_names(self, request: ModelRequest) -> ModelRequest:
        """The request without names in the model's answers, unless the template renders them.

        Some clients add one to each answer.
        """
        if self._renders_names or request.plain_text:
            return request
        named = [message for message in request.messages if "name" in message]
        if not any(message["role"] == "assistant" for message in named):
            return request
        messages = [
            (
                {key: value for key, value in message.items() if key != "name"}
                if message["role"] == "assistant"
                else message
            )
            for message in request.messages
        ]
        return msgspec.structs.replace(request, messages=tuple(messages))

    def is_local(self, features: frozenset[str]) -> bool:
        """True if the template renders new messages independently of earlier ones, given these features."""
        return self._local.get(features, False)

    def after(self, opened: str, conversation: AnsweredConversation, new: Sequence[MessageDict]) -> str | None:
        """Returns the text between a sampled answer and the next one; None if the template rewrites the answer.

        Args:
            opened: the prompt of the answer as the template renders it now.
            conversation: the messages through the answer.
            new: the messages after it.
        """
        before, answer, sampled, tools, kwargs = conversation
        whole = self.chat.render([*before, answer, *new], tools, **kwargs)
        if whole.startswith(opened) and whole.startswith(sampled, len(opened)):
            return whole[len(opened) + len(sampled) :]
        # The model's answer differs in form from the template's, for example in a tool call's JSON: if both parse to
        # the same message, the sampled tokens stay and only the text after them is taken.
        answered = self.chat.render([*before, answer], tools, add_generation_prompt=False, **kwargs)
        marked = self.chat.render(
            [*before, {"role": "assistant", "content": SENTINEL}], tools, add_generation_prompt=False, **kwargs
        )
        closing = marked.rpartition(SENTINEL)[2]
        if not answered.endswith(closing):
            closing = self.closing_of_stop(
                answered, sampled
            )  # calls may end with another stop token than other answers
        if not (closing and answered.startswith(opened) and whole.startswith(answered)):
            return None
        written = answered[len(opened) : len(answered) - len(closing)]
        if not self.means_same(written, answer, tools, in_reasoning=self.chat.format.opens_reasoning(opened)):
            return None
        text = closing + whole[len(answered) :]
        return self.without_stop(text) if self.is_stopped(sampled) else text

    def text_after_window(
        self,
        features: frozenset[str],
        answer: MessageDict,
        sampled: str,
        new: Sequence[MessageDict],
        kwargs: Mapping[str, Any],
    ) -> str | None:
        """Like `after`, with a placeholder history that has these features; None if the full conversation is needed."""
        before, tools = window(features)
        key = (features, repr(kwargs))
        try:
            if (opened := self._openings.get(key)) is None:
                if len(self._openings) >= CACHE_SIZE:
                    self._openings.clear()
                opened = self._openings[key] = self.chat.render(before, tools, **kwargs)
            tail = self.after(opened, AnsweredConversation(before, answer, sampled, tools, kwargs), new)
        except RequestError:
            return None
        if tail is None:
            self._openings.pop(key, None)  # it may be outdated: some templates write the date
        return tail

    def means_same(
        self, written: str, answer: MessageDict, tools: Sequence[MessageDict], *, in_reasoning: bool
    ) -> bool:
        """True if a text parses to the same message as an answer, reasoning included."""
        parsed = self.chat.format.parse(join_marks(written), tools, in_reasoning=in_reasoning)
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in parsed.tool_calls]
        return (answer.get("reasoning_content") or "").strip() == parsed.reasoning.strip() and same_answer(
            answer, {"role": "assistant", "content": parsed.text, "tool_calls": calls}
        )

    def closing_of_stop(self, answered: str, sampled: str) -> str:
        """The end of a rendered conversation from the stop token on with which a completion ends.

        Empty if it has none.
        """
        stop = next((stop for stop in self.stops() if sampled.endswith(stop)), "")
        before, stop_text, after = answered.rpartition(stop) if stop else ("", "", "")
        return stop_text + after if before else ""

    def is_stopped(self, sampled: str) -> bool:
        """True if a completion ends with a stop token."""
        return any(sampled.endswith(stop) for stop in self.stops())

    def without_stop(self, text: str) -> str:
        """Text after an answer, without the stop token that the model has sampled."""
        return next((text[len(stop) :] for stop in self.stops() if text.startswith(stop)), text)

    def stops(self) -> Iterator[str]:
        """Texts of the stop tokens."""
        return (text for token in self.chat.stop_ids if (text := self.chat.decode([token], skip_special=False)))
