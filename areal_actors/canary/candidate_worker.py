"""The inference worker of a candidate: it loads the candidate's weights in place of the served ones."""

from __future__ import annotations

from areal_actors.generation.engine_reports import LoadReport
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import CandidatePublished, EngineInexact, WeightsPublished
from areal_actors.runtime.actor import Context, Emits, on


class CandidateWorker(InferenceWorker):
    """A worker that stays with the candidate, whatever is decided: open sessions keep their weights."""

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every inference worker."""
        return InferenceWorker.kind()

    @on
    async def weights_published(self, event: WeightsPublished) -> None:  # type: ignore[override]
        """Leave the served weights to the other workers."""

    @on
    async def candidate_published(
        self, event: CandidatePublished, context: Context
    ) -> Emits[LoadReport | EngineInexact]:
        """Load the candidate's weights."""
        published = WeightsPublished(weight_version=event.weight_version, location=event.location)
        async for message in super().weights_published(published, context):
            yield message
