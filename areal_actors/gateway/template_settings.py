"""The recipe's settings of chat template and tool calls, applied to a model's tokenizer and tested."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jinja2

from areal_actors.core.errors import SetupError
from areal_actors.gateway.conversations.kept_reasoning import KeptReasoning
from areal_actors.gateway.settings import KEEP_REASONING, NO_TEMPLATE, TEMPLATE_WORDS, GatewaySettings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.round_trip import ToolSupport


class TemplateTest(NamedTuple):
    """Abilities of a model's chat template."""

    tools: ToolSupport
    kept: KeptReasoning | None
    """Keeps reasoning that the template drops; None unless the recipe asks for it."""

    def __str__(self) -> str:
        """Return the result in one line."""
        if self.tools.error:
            return f"requests with tools are refused: {self.tools.error}"
        unlisted = (
            "" if self.tools.lists_tools else "; the template leaves the list of tools out: describe them in a message"
        )
        return f"read as {self.tools.format}, {'several' if self.tools.parallel else 'one'} in an answer{unlisted}"


def apply_template_settings(chat: ChatTokenizer, config: GatewaySettings) -> TemplateTest:
    """Set the tokenizer's chat template and answer format; returns the abilities of the template.

    Raises:
        SetupError: a setting is invalid, or does not fit the template.
    """
    chat.reads_marks = config.marks_in_text == "control"
    if config.chat_template == NO_TEMPLATE:
        chat.use_template("")
    elif config.chat_template not in ("", *TEMPLATE_WORDS):
        path = Path(config.chat_template).expanduser()
        try:
            chat.use_template(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(
                f"gateway.chat_template: {path} cannot be read ({error}); name a chat template's file"
            ) from error
        except jinja2.TemplateSyntaxError as error:
            raise SetupError(
                f"gateway.chat_template: {path}, line {error.lineno}: {error.message}; expected a Jinja template"
            ) from error
    support = chat.choose_format(config.tool_format)
    return TemplateTest(support, KeptReasoning(chat) if config.chat_template == KEEP_REASONING else None)
