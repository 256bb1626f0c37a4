"""Ten thousand random conversations over the chat templates of real model families."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.conversations import converse

TEMPLATES = Path(
    os.environ.get("AREAL_CHAT_TEMPLATES", Path(__file__).parent.parent.parent / "shared" / "data" / "chat_templates")
)
FILES = sorted(TEMPLATES.glob("*.jinja"))
CONVERSATIONS = 600
FAITHFUL = {"cohere2", "gemma3", "llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3_instruct_2507"}
"""Templates that render the model's output unchanged."""


@pytest.mark.skipif(
    not FILES, reason="there are no chat templates; set AREAL_CHAT_TEMPLATES to a folder of .jinja files"
)
@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_prompts_extend_to_the_token_or_split_with_a_reason(path):
    """The checks stand in `conversations.Talk`: sampled ids are trained, prompts extend exactly, or an event has the
    reason."""
    became = converse(path.read_text(encoding="utf-8"), CONVERSATIONS)
    assert became.total() >= 3 * CONVERSATIONS
    if path.stem in FAITHFUL:
        assert sum(number for what, number in became.items() if what.startswith("split")) <= 0.01 * became.total()
