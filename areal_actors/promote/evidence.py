"""Evidence of `areal-actors serve promote` beside the rewards of users: the answers in the log of a served model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from areal_actors.canary.trial import REWARD, CandidateTrial
from areal_actors.canary.verdict import CandidateVerdict
from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import WeightsLocation
from areal_actors.learn.reward_rule import load_function
from areal_actors.messages import CandidatePublished, WeightsPublished
from areal_actors.promote.judged_shadow import compare_judged
from areal_actors.promote.sampled_answers import SampledAnswers
from areal_actors.recipe.recipe import Recipe
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.message import Message

if TYPE_CHECKING:
    from areal_actors.promote import divergence
else:
    divergence = LazyModule("areal_actors.promote.divergence")


class CandidateEvidence:
    """Fold every event of the log, then judge or measure the answers that it has."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        """`folder` is that of the served model."""
        self._recipe = recipe
        self._folder = folder
        self._answers = SampledAnswers()
        self._locations: dict[int, WeightsLocation] = {}
        self.sentences: list[str] = []
        """For people."""

    def fold(self, event: Message) -> None:
        """Fold an event."""
        self._answers.fold(event)
        if isinstance(event, (WeightsPublished, CandidatePublished)):
            self._locations[event.weight_version] = event.location

    def judge_shadow(self, trial: CandidateTrial, spec: str) -> None:
        """Compare the answers of a shadow with the served ones by a function, in place of rewards.

        Raises:
            SetupError: the candidate is no shadow, or the function failed.
        """
        at = trial.published
        assert at is not None
        if at.mode != "shadow":
            raise SetupError(
                f"--reward judges a shadow, and gateway.candidate.mode is {at.mode}: users' rewards decide"
            )
        tokenizer = ChatTokenizer.load(self._model(at.weight_version))
        decode = functools.partial(tokenizer.decode, skip_special=False)
        judged = compare_judged(self._answers.pairs(), load_function(spec), spec, at, decode)
        trial.comparisons[REWARD] = judged
        self.sentences.append(f"rewards are those of {spec}, for both answers to a prompt; a session is a pair")

    def limit_divergence(self, trial: CandidateTrial, verdict: CandidateVerdict, most: float) -> CandidateVerdict:
        """Measure the divergence of each version from the other; promote only what is shown to be below a limit.

        Args:
            trial: of the log.
            verdict: without this limit.
            most: largest divergence, in nats a token.

        Raises:
            SetupError: one version has no answers yet, or its weights are gone.
        """
        at = trial.published
        assert at is not None
        highest = 0.0
        names = {at.weight_version: "candidate", at.serving_version: "served version"}
        for own, other in ((at.weight_version, at.serving_version), (at.serving_version, at.weight_version)):
            measured = divergence.measure_divergence(
                list(self._answers.answers(is_candidate=own == at.weight_version)),
                self._model(other),
                self._recipe.trainer,
                temperature=self._recipe.sampling.temperature,
                seed=self._recipe.seed,
            )
            highest = max(highest, measured.high)
            self.sentences.append(measured.describe(names[own], names[other]))
        if highest < most or verdict.decision != "promoted":
            return verdict
        return CandidateVerdict(None, f"the divergence may be {highest:.4f}, and its limit is {most:g} nats a token")

    def _model(self, version: int) -> str:
        model = self._folder / self._locations[version].model
        if not any(model.glob("*.safetensors")):
            raise SetupError(f"the weights of version {version} are no longer at {model}; put them back there")
        return str(model)
