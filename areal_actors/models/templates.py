"""Chat templates for base models, which come without one: `areal-actors model template FOLDER`.

`chatml` needs tokens that begin and end a turn, as the base models of Qwen and SmolLM2 have them; `plain` needs the
end-of-text token only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.models.folder_check import write_stop_ids
from areal_actors.tokenization.tokenizer import ChatTokenizer

Style = Literal["auto", "chatml", "plain"]
FILE = "chat_template.jinja"
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
TEMPLATES: Mapping[str, str] = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] +"
        " '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n"
    ),
    "plain": (
        "{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token + '\\n' }}"
        "{% else %}{{ message['role'] | capitalize + ': ' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}\n"
    ),
}


def write_template(folder: Path, style: Style) -> str:
    """Write `chat_template.jinja` into the folder of a base model, and the stop token of the template.

    Returns the style that was taken.

    Raises:
        SetupError: the folder has no tokenizer, or a template already, or its vocabulary lacks the tokens of the style.
    """
    chat = ChatTokenizer.load(folder)
    if chat.template.source:
        raise SetupError(
            f"{folder} has a chat template already; gateway.chat_template = FILE in a recipe takes another one in its"
            " place"
        )
    has_chatml = all(chat.special_id(token) is not None for token in CHATML_TOKENS)
    if style == "auto":
        style = "chatml" if has_chatml else "plain"
    if style == "chatml" and not has_chatml:
        raise SetupError(f"{folder}: its tokenizer has no tokens {' and '.join(CHATML_TOKENS)}; take --style plain")
    if style == "plain" and "eos_token" not in chat.template.special_tokens:
        raise SetupError(
            f"{folder}: tokenizer_config.json names no eos_token, with which the template would end a turn; add it"
            " there"
        )
    try:
        atomic_write(folder / FILE, TEMPLATES[style].encode())
        write_stop_ids(folder)
    except OSError as error:
        raise SetupError(f"{folder / FILE} cannot be written: {error.strerror}") from error
    return style
