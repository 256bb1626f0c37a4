"""The weights of a served log: a fold over what was published, compared and promoted, for its next start."""

from __future__ import annotations

from areal_actors.core.values import WeightsLocation
from areal_actors.messages import CandidateDecided, CandidatePublished, WeightsPublished

VersionEvent = WeightsPublished | CandidatePublished | CandidateDecided
KINDS: dict[str, type[VersionEvent]] = {
    kind.subject: kind for kind in (WeightsPublished, CandidatePublished, CandidateDecided)
}


class ServedVersions:
    """Fold every event of `KINDS` in the order of the log."""

    def __init__(self) -> None:
        self.newest = -1
        """Highest version of any weights."""
        self.published: WeightsPublished | None = None
        """Weights that were published last for all sessions."""
        self.served: WeightsPublished | None = None
        """Weights of new sessions: those published last, or a candidate promoted since; None if these are rolled back,
        so that the model that is asked for is published again, as another version."""
        self.asked: WeightsLocation | None = None
        """Model that was asked for when weights were published last, in whose place a candidate may have come."""
        self.candidate: CandidatePublished | None = None
        self.decided: CandidateDecided | None = None

    def fold(self, event: VersionEvent) -> None:
        """Fold an event."""
        if not isinstance(event, CandidateDecided):
            self.newest = max(self.newest, event.weight_version)
        match event:
            case WeightsPublished():
                is_promoted = self.served is not None and event.weight_version == self.served.weight_version
                self.published = self.served = event
                self.asked = self.asked if is_promoted else event.location
            case CandidatePublished():
                self.candidate, self.decided = event, None
            case CandidateDecided() if self.candidate and event.weight_version == self.candidate.weight_version:
                self._decide(event)

    def _decide(self, event: CandidateDecided) -> None:
        at = self.candidate
        if at is None or (self.decided is not None and event.decision != "rolled back"):
            return
        if event.decision == "promoted":
            self.served = WeightsPublished(weight_version=at.weight_version, location=at.location)
        elif self.decided is not None and self.published is not None:  # a promoted one is rolled back
            is_loaded = self.published.weight_version == at.weight_version
            self.served = None if is_loaded else self.published
        self.decided = event

    def locate(self, asked: WeightsLocation) -> WeightsPublished:
        """Returns the weights to serve where a recipe asks for a model: a promoted candidate is in its place."""
        if self.served is not None and asked in (self.served.location, self.asked):
            return self.served
        return WeightsPublished(weight_version=self.newest + 1, location=asked)
