"""Validates every completion where it enters the gateway: one that fails is neither answered, recorded nor trained.

Each part of a completion is validated once, whole columns at a time, before its tokens are added. A part is compared
with the request (`max_tokens`, top log-probabilities), the model (vocabulary), the run (published weight versions) and
the parts before it. A violation is a `CompletionFault`, an engine failure with the worker's name.
"""

from __future__ import annotations

import asyncio

import numpy as np

from areal_actors.core.column_check import ColumnFault, number_fault, structure_fault
from areal_actors.core.errors import EngineError
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import SamplingParams
from areal_actors.messages import Generated
from areal_actors.runtime.actor import Context

FINISH_REASONS = frozenset({"", "stop", "length"})
"""Finish reasons of a part; the last part has one, those before it have none."""
PUBLICATION_SECONDS = 30.0
"""Worker and gateway read publications from the same log, and the worker may be ahead. A part with a weight version
that the gateway has not read yet waits this long for it: on a busy machine the gateway may be seconds behind."""


class CompletionFault(EngineError):
    """Raised when an inference worker's answer is invalid; has the worker and the fault."""

    def __init__(self, fault: ColumnFault, worker: str = "") -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.worker = worker

    def __str__(self) -> str:
        return f"{self.worker}: {self.fault}" if self.worker else str(self.fault)


class PublishedVersions:
    """The newest published weight version."""

    def __init__(self, newest: int = -1) -> None:
        self.newest = newest
        self._changed = asyncio.Condition()

    async def publish(self, weight_version: int) -> None:
        """Record a published version and wake its waiters."""
        async with self._changed:
            self.newest = max(self.newest, weight_version)
            self._changed.notify_all()

    async def wait(self, weight_version: int, context: Context, seconds: float = PUBLICATION_SECONDS) -> None:
        """Wait until this version is published, at most `seconds`."""
        if weight_version <= self.newest:
            return
        try:
            with context.waiting(f"the publication of weight version {weight_version}", seconds):
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait_for(lambda: weight_version <= self.newest)
        except TimeoutError:
            return


class CompletionCheck:
    """Validates the parts of one choice as they arrive."""

    def __init__(
        self, published: PublishedVersions, vocabulary: int, sampling: SamplingParams, routes: RouteShape | None = None
    ) -> None:
        """`vocabulary`: number of token ids of the model, 0 if unknown.

        `sampling` and `routes` are those that the request asks for.
        """
        self._routes = routes
        self.published = published
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._last_version = -1

    def reset_version(self) -> None:
        """Accept any version next: another worker continues, and may have older weights."""
        self._last_version = -1

    async def until_published(self, part: Generated, context: Context) -> None:
        """Wait for the publication of the newest version in this part, at most `PUBLICATION_SECONDS`."""
        if part.columns.versions and part.columns.versions[-1].weight_version > self.published.newest:
            await self.published.wait(part.columns.versions[-1].weight_version, context)

    def validate(self, part: Generated, sampled: int) -> None:
        """Validate the next part; `sampled` tokens of the choice precede it.

        Raises:
            CompletionFault: the part is invalid.
        """
        fault = self._fault(part, sampled)
        if fault is not None:
            raise CompletionFault(fault)
        if part.columns.versions:
            self._last_version = part.columns.versions[-1].weight_version

    def _fault(self, part: Generated, sampled: int) -> ColumnFault | None:
        if part.error:
            return ColumnFault(check="engine error", detail=part.error)
        columns, tokens = part.columns, len(part.columns)
        if self._routes is not None and (unfit := self._routes.fault(part.routes)) is not None:
            return unfit
        if part.finish_reason not in FINISH_REASONS:
            expected = "'stop' or 'length' was expected"
            return ColumnFault(check="finish reason", detail=f"{part.finish_reason!r:.40}; {expected}")
        if not tokens and not (part.finish_reason and sampled) and not (part.routes and not part.finish_reason):
            detail = (
                "ended the completion without a single token"
                if part.finish_reason
                else "answered without tokens or a finish reason"
            )
            return ColumnFault(check="no tokens", detail=f"the inference worker {detail}")
        if sampled + tokens > self._sampling.max_tokens:
            asked = f"{self._sampling.max_tokens} tokens were asked for"
            cause = f"{asked}, {sampled} were sampled before, and {tokens} more came"
            return ColumnFault(check="too many tokens", detail=cause, position=self._sampling.max_tokens)
        fault = structure_fault(columns) or self._version_fault(part)
        fault = (
            fault
            or number_fault(columns.ids_array(), columns.logprobs_array(), self._vocabulary)
            or self._top_fault(part, tokens)
        )
        return fault and _with_offset(fault, sampled)

    def _version_fault(self, part: Generated) -> ColumnFault | None:
        last, newest = self._last_version, self.published.newest
        for span in part.columns.versions:
            if span.weight_version < last:
                fault = (
                    f"weight version {span.weight_version} after {last}; versions do not decrease within a completion"
                )
                return ColumnFault(check="weight version", detail=fault, position=span.start)
            if span.weight_version > newest:
                fault = f"weight version {span.weight_version}; the newest that was published is {newest}"
                return ColumnFault(check="weight version", detail=fault, position=span.start)
            last = span.weight_version
        return None

    def _top_fault(self, part: Generated, tokens: int) -> ColumnFault | None:
        width = self._sampling.top_logprobs
        if len(part.top_ids) != 4 * tokens * width or len(part.top_logprobs) != len(part.top_ids):
            counts = f"{len(part.top_ids) / 4:g} ids and {len(part.top_logprobs) / 4:g} log-probabilities"
            return ColumnFault(
                check="top log-probabilities", detail=f"{counts}; {tokens} tokens of {width} each were expected"
            )
        if not width:
            return None
        fault = number_fault(
            np.frombuffer(part.top_ids, "<u4"), np.frombuffer(part.top_logprobs, "<f4"), self._vocabulary
        )
        return fault and ColumnFault(
            check="top log-probabilities", detail=fault.detail, position=fault.position // width
        )


def _with_offset(fault: ColumnFault, sampled: int) -> ColumnFault:
    """The fault with its position relative to the completion's first token."""
    return (
        fault
        if fault.position < 0
        else ColumnFault(check=fault.check, detail=fault.detail, position=sampled + fault.position)
    )
