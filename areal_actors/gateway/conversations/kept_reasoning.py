"""Prompts that keep earlier reasoning although the chat template drops it.

The parent's tokens stay, and only the new text is rendered.
The template renders the new text after a history without reasoning, in which its dropping changes nothing. That is
exact only for templates that render such a history as a prefix of its continuation, apart from empty reasoning; this is
tested when one is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.core.errors import ArealError, RequestError, SetupError
from areal_actors.gateway.conversations.message_equality import MessageDict
from areal_actors.gateway.conversations.template_window import (
    SENTINEL,
    Messages,
    features_of,
    test_conversations,
    window,
)
from areal_actors.tokenization.tokenizer import ChatTokenizer

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class KeptReasoning:
    """Renders the text after an answer whose reasoning stays in the prompt."""

    def __init__(self, chat: ChatTokenizer) -> None:
        """Test the template.

        Raises:
            SetupError: it has no reasoning, or rewrites other parts of earlier messages in every conversation.
        """
        self.chat = chat
        if not chat.format.reasoning:
            raise SetupError(
                "gateway.chat_template is keep-reasoning, but the model's chat template has no reasoning; leave it out"
            )
        self._stops = [stop for token in chat.stop_ids if (stop := chat.decode([token], skip_special=False))]
        pairs = [
            f"{re.escape(opening)}\\s*(?:{re.escape(closing)}|\\Z)\\s*" for opening, closing in chat.format.reasoning
        ]
        self._empty = re.compile("|".join(pairs))
        """Reasoning without text, or its opening at the end of a prompt."""
        self._usable = self._test_features()
        if not any(self._usable.values()):
            raise SetupError(
                "gateway.chat_template is keep-reasoning, but the model's chat template rewrites more than reasoning in"
                " earlier messages: the tokens before them cannot be kept; name the file of a template that renders"
                " them unchanged"
            )

    def is_usable(self, features: frozenset[str]) -> bool:
        """True if the template renders new text independently of the history in conversations with these features."""
        return self._usable.get(features - {"reasoning_content"}, False)

    def after(
        self,
        features: frozenset[str],
        answer: MessageDict,
        sampled: str,
        new: Sequence[MessageDict],
        kwargs: Mapping[str, Any],
    ) -> str | None:
        """Return the text after a sampled answer: the end of its turn and the new messages.

        The stop token is left out if it was sampled. None if the template rejects the messages, or ends the answer with
        another kind of stop token.
        """
        before, tools = window(features - {"reasoning_content"})
        sampled_stops = [stop for stop in self._stops if sampled.endswith(stop)]
        try:
            text = self._text_after(before, answer, new, tools, kwargs, sampled_stops)
        except RequestError:
            return None
        if text is None or not sampled_stops:
            return text
        return next((text[len(stop) :] for stop in self._stops if text.startswith(stop)), text)

    def _text_after(
        self,
        before: Messages,
        answer: MessageDict,
        new: Sequence[MessageDict],
        tools: Messages,
        kwargs: Mapping[str, Any],
        stops: Sequence[str],
    ) -> str | None:
        """Return the end of an answer's turn and the new messages.

        They are rendered after an answer of the same kind with a text that marks its end. Calls that the template does
        not end as it ends other answers have to end with one of `stops`.
        """
        plain = {"role": "assistant", "content": SENTINEL}
        if not answer.get("tool_calls"):
            whole = self.chat.render([*before, plain, *without_reasoning(new)], tools, **kwargs)
            return whole.rpartition(SENTINEL)[2] if SENTINEL in whole else None
        calls = [dict(call) for call in answer["tool_calls"]]
        function = calls[-1]["function"]
        calls[-1]["function"] = {"name": function["name"], "arguments": f'{{"x": "{SENTINEL}"}}'}
        marked = {"role": "assistant", "content": answer.get("content") or "", "tool_calls": calls}
        whole = self.chat.render([*before, marked, *without_reasoning(new)], tools, **kwargs)
        alone = self.chat.render([*before, marked], tools, add_generation_prompt=False, **kwargs)
        closed = self.chat.render([*before, plain], tools, add_generation_prompt=False, **kwargs)
        end, tail, closing = (
            alone.rpartition(SENTINEL)[2],
            whole.rpartition(SENTINEL)[2],
            closed.rpartition(SENTINEL)[2],
        )
        if SENTINEL not in whole or not tail.startswith(end):
            return None
        if not end.endswith(closing):
            place = max((end.rfind(stop) for stop in stops), default=-1)
            if place < 0:
                return None
            closing = end[place:]
        return closing + tail[len(end) :]

    def _test_features(self) -> dict[frozenset[str], bool]:
        """True if the text after an answer does not depend on the history, by features without reasoning.

        The text is the same after a placeholder, and extends the prompt.
        """
        usable: dict[frozenset[str], bool] = {}
        for before, answer, new, tools in test_conversations():
            kind = (features_of([*before, answer]) | ({"tools"} if tools else set())) - {"reasoning_content"}
            if usable.get(kind, True):
                usable[kind] = self._is_prefix_preserving(before, answer, new, tools) and self._is_local(
                    before, answer, new, tools
                )
        return usable

    def _is_local(self, before: Messages, answer: dict[str, Any], new: Messages, tools: Messages) -> bool:
        features = features_of(without_reasoning(before)) | ({"tools"} if tools else set())
        placeholder, placeholder_tools = window(features)
        try:
            own_text = self._text_after(before, answer, new, tools, {}, self._stops)
            return own_text is not None and own_text == self._text_after(
                placeholder, answer, new, placeholder_tools, {}, self._stops
            )
        except ArealError:
            return False

    def _is_prefix_preserving(self, before: Messages, answer: dict[str, Any], new: Messages, tools: Messages) -> bool:
        """True if a conversation without reasoning begins with its earlier prompt, apart from empty reasoning."""
        before, plain = without_reasoning(before), without_reasoning([answer])
        try:
            opened = self.chat.render(before, tools)
            whole = self.chat.render([*before, *plain, *new], tools)
        except ArealError:
            return False
        return self._empty.sub("", whole).startswith(self._empty.sub("", opened))


def without_reasoning(messages: Sequence[MessageDict]) -> Messages:
    """Return the messages without their reasoning."""
    return [{key: value for key, value in message.items() if key not in REASONING_FIELDS} for message in messages]
