"""Text to tokens and back, and messages to prompts, from a Hugging Face folder, without loading torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from areal_actors.errors import RequestError, SetupError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send a message's reasoning; templates read the first."""


class ChatTokenizer:
    """A model's tokenizer, its chat template and the ids that end its turns."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str, special_tokens: Mapping[str, str], stop_ids: Sequence[int]) -> None:
        self.stop_ids = tuple(stop_ids)
        """Ids that end a completion; kept in its columns, not in its text."""
        self.vocabulary_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._template = compiled(chat_template) if chat_template else None

    @classmethod
    def load(cls, folder: str | Path) -> ChatTokenizer:
        """Read `tokenizer.json`, its configuration, the chat template and the model's end-of-sequence ids.

        Raises:
            SetupError: the folder has no tokenizer.json, or a file in it does not parse.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SetupError(
                f"{folder} holds no tokenizer.json: give a Hugging Face folder with a fast tokenizer (save_pretrained writes one)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
            config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
            special_tokens = text_of_special_tokens(config)
            stop_ids = stop_ids_of(folder, tokenizer, special_tokens)
            return cls(tokenizer, chat_template_of(folder, config), special_tokens, stop_ids)
        except (ValueError, jinja2.TemplateSyntaxError) as error:
            raise SetupError(f"the tokenizer in {folder} cannot be loaded: {error}; save it again or take another copy") from error
        except Exception as error:
            # The tokenizers library raises bare Exception for a file that it cannot parse.
            if type(error) is not Exception:
                raise
            raise SetupError(f"{path} cannot be loaded: {error}; save it again or take another copy") from error

    def encode(self, text: str) -> list[int]:
        """Ids of a text: special tokens in it are recognised, none are added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:  # noqa: FBT001, FBT002 - reads as a sentence at its call
        """Text of ids, with the replacement character where they do not make a character."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt that the chat template makes of messages and tools; `kwargs` are the template's own.

        Raises:
            SetupError: the model has no chat template.
            RequestError: the template refuses these messages; its own words say why.
        """
        if self._template is None:
            raise SetupError("the model has no chat template: add chat_template.jinja to its folder")
        variables = {**self._special_tokens, **kwargs, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(
                messages=[with_reasoning(message) for message in messages],
                tools=list(tools) if tools else None,
                documents=None,
                **variables,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}", field="messages") from error


class TextStream:
    """Text of a completion while its tokens arrive: holds back incomplete characters and what may become a stop string."""

    def __init__(self, tokenizer: ChatTokenizer, stop: Sequence[str] = ()) -> None:
        self.matched = ""
        """The stop string that ended the text; empty while none did."""
        self.released = ""
        """All text released so far."""
        self._tokenizer = tokenizer
        self._stop = tuple(string for string in stop if string)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._decoded = ""
        """Text of all tokens so far, up to the last complete character."""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next tokens and return the text that is now certain."""
        if self.matched:
            return ""
        self._ids.extend(ids)
        for token_id in ids:
            self._decoded += self._stream.step(self._tokenizer.tokenizer, token_id) or ""
        return self._release(final=False)

    def finish(self) -> str:
        """Return what was held back; no more tokens come."""
        if self.matched:
            return ""
        whole = self._tokenizer.decode(self._ids)
        if whole.startswith(self._decoded):
            self._decoded = whole
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        start = len(self.released)
        pending = self._decoded[start:]
        found = [(pending.find(string), string) for string in self._stop if string in pending]
        if found:
            # What was released holds no beginning of a stop string, so the earliest match lies in what is pending.
            at, self.matched = min(found)
            pending = pending[:at]
        elif not final:
            pending = pending[: len(pending) - self._possible_stop(pending)]
        self.released += pending
        return pending

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of a text with which a stop string begins."""
        longest = max((len(string) for string in self._stop), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((length for length in lengths if any(string.startswith(text[-length:]) for string in self._stop)), 0)


class GenerationBlock(jinja2.ext.Extension):
    """Accepts `{% generation %}`, which marks an assistant's text for training and renders as what it encloses."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Keep what stands between the tags."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def compiled(chat_template: str) -> jinja2.Template:
    """A chat template in the environment that templates on the Hub are written for; sandboxed, for they are others' code."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(chat_template)


def to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates may give it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as models are trained on it: jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    """What a template calls for messages that its model was not trained on."""
    raise jinja2.TemplateError(message)


def strftime_now(pattern: str) -> str:
    """The local time, for templates that tell the model the date."""
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - the reader's date, as everybody renders these templates


def with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose reasoning, under whatever name a client sends it, bears the names that templates read."""
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's table; empty when there is no such file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def chat_template_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The template of a folder: its own file, or the configuration's entry (the default of several); empty if there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default", "")
    return str(template)


def text_of_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, as templates see them."""
    tokens = {name: value["content"] if isinstance(value, dict) else value for name, value in config.items() if name.endswith("_token")}
    return {name: value for name, value in tokens.items() if isinstance(value, str)}


def stop_ids_of(folder: Path, tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> list[int]:
    """End-of-sequence ids of the model's generation settings and configuration, and of the tokenizer."""
    stops: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        value = read_json(folder / file).get("eos_token_id")
        stops.update(value if isinstance(value, list) else [] if value is None else [value])
    of_tokenizer = tokenizer.token_to_id(special_tokens.get("eos_token", ""))
    return sorted(stops | ({of_tokenizer} if of_tokenizer is not None else set()))
