"""Scores from a trained reward model: a Hugging Face sequence classifier with one label, applied in batches.

A score is the model's single logit at the last token of the conversation in its own chat template (Bradley-Terry, as in
arXiv:2203.02155, section 3.4); it is an unbounded real number, and only differences between answers are meaningful.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RequestError, RewardError, SetupError
from areal_actors.rewards import Score, check_score
from areal_actors.rewards.checks import task_name
from areal_actors.rewards.settings import RewardModelSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.weights.torch_device import torch_device


class SequenceClassifier:
    """The model and its tokenizer. Construction blocks while they load.

    Raises:
        SetupError: the folder holds no classifier with one label, no chat template, or the device is missing.
    """

    def __init__(self, folder: str, settings: RewardModelSettings) -> None:
        if not Path(folder, "config.json").is_file():
            raise SetupError(
                f"task.reward: {folder} has no config.json; set it to the Hugging Face folder of a trained reward model"
            )
        device = torch_device(settings.device, "task.reward_options.device")
        torch.set_num_threads(settings.threads)
        self.tokenizer = ChatTokenizer.load(folder)
        if not self.tokenizer.template.source:
            raise SetupError(
                f"task.reward: the reward model in {folder} has no chat template; add chat_template.jinja to its folder"
            )
        self.model = _load_classifier(folder, settings.dtype).to(device).eval().requires_grad_(False)
        self.max_length = int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2**31)
        self.batch_tokens = settings.batch_tokens
        self._vocabulary = int(self.model.config.get_text_config().vocab_size)

    def ids(self, task: Mapping[str, Any], output: str) -> list[int]:
        """Tokens of a task's conversation with this answer at its end.

        Raises:
            RewardError: the task has no conversation, the template rejects it, or it exceeds the model's context.
        """
        try:
            text = self.tokenizer.render(conversation(task, output), add_generation_prompt=False)
        except RequestError as error:
            raise RewardError(f"failed: {error}") from error
        ids = self.tokenizer.encode(text)
        if len(ids) > self.max_length:
            raise RewardError(
                f"failed: the conversation has {len(ids)} tokens, the reward model's context is {self.max_length}; "
                "lower generation.max_model_len"
            )
        if not ids or max(ids) >= self._vocabulary:
            raise RewardError("failed: the conversation has no tokens, or tokens outside the reward model's vocabulary")
        return ids

    @torch.inference_mode()
    def scores(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """Scores of a batch: float32, one per conversation."""
        width = max(map(len, conversations))
        # Transformers takes the last token that is not padding as a row's end, so no row may end with the padding
        # token.
        last = {ids[-1] for ids in conversations}
        pad = next(number for number in range(self._vocabulary) if number not in last)
        self.model.config.pad_token_id = self.model.config.get_text_config().pad_token_id = pad
        token_ids = torch.full((len(conversations), width), pad, dtype=torch.int64)
        mask = torch.zeros((len(conversations), width), dtype=torch.int64)
        for row, ids in enumerate(conversations):
            token_ids[row, : len(ids)] = torch.tensor(ids)
            mask[row, : len(ids)] = 1
        device = self.model.device
        logits: torch.Tensor = self.model(input_ids=token_ids.to(device), attention_mask=mask.to(device)).logits
        scores: list[float] = logits[:, 0].float().tolist()
        return scores


class _PendingScore(msgspec.Struct, frozen=True):
    ids: list[int]
    score: asyncio.Future[float]


class ModelScorer:
    """Scores outputs with a reward model; those that arrive within `window_seconds` share a forward pass."""

    def __init__(
        self, name: str, model: SequenceClassifier, settings: RewardModelSettings, timeout_seconds: float
    ) -> None:
        self.name = name
        self.model = model
        self.window_seconds = settings.window_seconds
        self.timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward-model")
        self._waiting: list[_PendingScore] = []
        self._scoring: asyncio.Task[None] | None = None
        self._closed = False

    async def score(self, task_data: Mapping[str, Any], output: str) -> Score:
        """The model's score of the task's conversation with this output at its end; the deadline counts from now.

        Raises:
            RewardError: the model failed, took too long, or did not return a finite number. The message names it and
                the task.
        """
        subject, task = f"reward {self.name}", f"task {task_name(task_data)}"
        if self._closed:
            raise RewardError(f"{subject}: closed before the score was computed ({task})")
        try:
            waiting = _PendingScore(self.model.ids(task_data, output), asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            if self._scoring is None or self._scoring.done():
                self._scoring = asyncio.create_task(self._score_waiting())
            async with asyncio.timeout(self.timeout_seconds):
                return check_score(await waiting.score)
        except TimeoutError as error:
            remedy = "raise task.reward_timeout_seconds or start more reward workers"
            raise RewardError(f"{subject} took more than {self.timeout_seconds:g} s; {remedy} ({task})") from error
        except RewardError as error:
            raise RewardError(f"{subject} {error} ({task})") from error

    async def close(self) -> None:
        """Cancel pending scores and wait for the running forward pass."""
        self._closed = True
        if self._scoring is not None:
            self._scoring.cancel()
            await asyncio.gather(self._scoring, return_exceptions=True)
        for waiting in self._waiting:
            _fail(waiting, "was closed before the score was computed")
        await asyncio.to_thread(self._thread.shutdown)

    async def _score_waiting(self) -> None:
        """Score until no request is pending; requests that arrive during a pass form the next one."""
        await asyncio.sleep(self.window_seconds)
        while self._waiting:
            wanted = [waiting for waiting in self._waiting if not waiting.score.done()]
            for batch in batches([len(waiting.ids) for waiting in wanted], self.model.batch_tokens):
                await self._score([wanted[number] for number in batch])
            scored = set(map(id, wanted))
            self._waiting = [
                waiting for waiting in self._waiting if id(waiting) not in scored and not waiting.score.done()
            ]

    async def _score(self, batch: Sequence[_PendingScore]) -> None:
        loop = asyncio.get_running_loop()
        try:
            scores = await loop.run_in_executor(self._thread, self.model.scores, [waiting.ids for waiting in batch])
        # Out of memory, or an error in a model's own code; these scores fail with its message
        except Exception as error:  # noqa: BLE001
            for waiting in batch:
                _fail(waiting, f"raised {type(error).__name__}: {error!s:.300}")
            return
        for waiting, score in zip(batch, scores, strict=True):
            if not waiting.score.done():
                waiting.score.set_result(score)


def conversation(task: Mapping[str, Any], output: str) -> list[dict[str, Any]]:
    """Messages to score: the task's `messages`, or its `question` as the user's, then the output as the assistant's.

    Raises:
        RewardError: the task has neither.
    """
    messages, question = task.get("messages"), task.get("question")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        before = messages
    elif isinstance(question, str):
        before = [{"role": "user", "content": question}]
    else:
        raise RewardError(
            "failed: the task has neither `messages`, a list of tables, nor a `question` for the reward model"
        )
    return [*before, {"role": "assistant", "content": output}]


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Batches of indices: conversations of similar length, at most `budget` tokens with padding, or a single one."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _fail(waiting: _PendingScore, reason: str) -> None:
    if not waiting.score.done():
        waiting.score.set_exception(RewardError(reason))


def _load_classifier(folder: str, dtype: str) -> Any:
    """Load the classifier; rejects folders without a trained head, which transformers would initialise at random."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
        )
    except (ValueError, OSError) as error:
        raise SetupError(f"task.reward: the reward model in {folder} cannot be loaded: {error!s:.300}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    if missing := sorted(loading["missing_keys"]):
        raise SetupError(
            f"task.reward: {folder} holds no trained reward model, it lacks {', '.join(missing[:3])}; use one of"
            f" `{COMMAND} run`"
        )
    if model.config.num_labels != 1:
        raise SetupError(
            f"task.reward: the model in {folder} has {model.config.num_labels} labels; a reward model has one"
        )
    return model
