"""The embedded model: a tiny language model created locally, so that a run can train on any laptop, offline.

It is a Qwen3 of a few hundred thousand parameters with its own byte-level tokenizer, in an ordinary Hugging Face
folder. The warm start trains it to solve arithmetic word problems step by step, and then, on purpose, to answer
immediately most of the time, so that reinforcement learning can discover that step-by-step solutions are rewarded.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from areal_actors.embedded.demonstrations import SKILLS, DemonstrationSource, has_conversations
from areal_actors.embedded.settings import CONTEXT, WarmStart
from areal_actors.embedded.warm_start import Progress, warm_up
from areal_actors.tasks.arithmetic import WordProblem, problems
from areal_actors.tokenization.chat_template import ChatTemplate

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCABULARY = 600
CONVERSATION_VOCABULARY = 1200
"""Vocabulary size with instructions and tools in the demonstrations, whose words need tokens too."""
SAMPLE_PROBLEMS = 2000
"""Problems in the training corpus of the tokenizer."""
SAMPLE_CONVERSATIONS = 1000
LARGEST_WHOLE_NUMBER = 120
"""Numbers up to this are one token each: a model learns arithmetic on them twice as fast as on digits."""

WORDS = r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Pre-tokenization: a token never crosses the boundary of a number of up to three digits, a word, signs, or spaces."""

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Functions you may call, as JSON, one a line:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nTo call one, write:\\n<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '\\n' if loop.previtem is defined and loop.previtem.role == 'tool' else '<|im_start|>user\\n' }}
{{- '<tool_response>\\n' + (message.content or '') + '\\n</tool_response>' }}
{{- '' if loop.nextitem is defined and loop.nextitem.role == 'tool' else '<|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{%- set content = message.content or '' %}
{{- '<|im_start|>' + message.role + '\\n' + content }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- if not loop.first or (content and not content.endswith('\\n')) %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Tool calls and responses use the format of Qwen2.5 and Qwen3. Later turns never change the rendering of a turn."""


def make_embedded_model(folder: str, warm_start: WarmStart, seed: int, threads: int, progress: Progress) -> None:
    """Create tokenizer and model, run the warm start, and move both atomically into a new folder.

    Args:
        folder: target Hugging Face folder; an existing one is replaced.
        warm_start: the recipe's table.
        seed: seeds the initial weights and the demonstrations.
        threads: torch's CPU threads.
        progress: called after every supervised step.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    partial = Path(f"{folder}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer = train_tokenizer(warm_start.skills)
    write_tokenizer(tokenizer, partial)
    model = initial_model(
        tokenizer, seed, conversational=has_conversations(warm_start.skills), head_dim=warm_start.head_dim
    )
    model.save_pretrained(partial)
    warm_up(partial, warm_start, seed, threads, progress)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def train_tokenizer(skills: Sequence[str] = ("answer",)) -> Tokenizer:
    """Train a byte-level BPE on problems of the training split; deterministic for given skills."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    sample = list(islice(problems("train", seed=0), SAMPLE_PROBLEMS))
    numbers = " ".join(str(number) for number in range(LARGEST_WHOLE_NUMBER + 1))
    corpus = [problem.question + "\n" + problem.answer for problem in sample] + [numbers] * SAMPLE_PROBLEMS
    corpus += ["system\n", "user\n", "assistant\n"] * SAMPLE_PROBLEMS
    conversations = list(_conversations(skills, sample)) if has_conversations(skills) else []
    tokenizer.train_from_iterator(
        corpus + conversations,
        trainers.BpeTrainer(
            vocab_size=CONVERSATION_VOCABULARY if conversations else VOCABULARY,
            special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if conversations:
        tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in TOOL_TOKENS])
    return tokenizer


def _conversations(skills: Sequence[str], sample: Sequence[WordProblem]) -> Iterator[str]:
    """Renders demonstrations of these problems, without special tokens."""
    template = ChatTemplate(CHAT_TEMPLATE, {})
    source = DemonstrationSource(cycle(sample), random.Random("conversations"), lambda: False)
    for _ in range(SAMPLE_CONVERSATIONS):
        shown = SKILLS[source.rng.choice(skills)](source)
        text = template.render(shown.messages, shown.tools)
        for mark in (TURN_START, TURN_END, *TOOL_TOKENS):
            text = text.replace(mark, "")
        yield text


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files for `AutoTokenizer`, or for `tokenizers` and jinja without it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def initial_model(
    tokenizer: Tokenizer, seed: int, *, conversational: bool = False, head_dim: int = 16
) -> Qwen3ForCausalLM:
    """Creates the untrained model; a `conversational` one has more heads, for retrieval from long prompts."""
    end = tokenizer.token_to_id(TURN_END)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=8 if conversational else 4,
        num_key_value_heads=4 if conversational else 2,
        head_dim=head_dim,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        # At a hidden size this small the usual 0.02 never learns to copy.
        initializer_range=0.1,
        eos_token_id=end,
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
