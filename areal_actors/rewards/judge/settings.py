"""The table of a judge, and its part of a reward: the verdict that `panel.py` has put beside the task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.core.task_settings import WEIGHTED
from areal_actors.rewards.composition import OWN_KEYS, RULE
from areal_actors.rewards.judge.questions import PromptTemplate

JUDGE = "judge"
"""Name of the reward."""
VERDICTS = "__judge_verdicts__"
"""Field of a task's row with the verdicts about an answer, or failures, by name of the judge; only the reward `judge`
reads it."""

Method = Literal["rubric", "pairwise", "listwise"]


class Criterion(Config):
    """A property of answers that a rubric scores."""

    description: str = ""
    """Description that the judge reads."""
    weight: NonNegativeFloat = 1.0
    """Weight in the mean; not part of the prompt."""


OVERALL: Mapping[str, Criterion] = {
    "quality": Criterion(description="How well the answer does what the task asks for.")
}
"""Criteria of a rubric that names none."""


class ModelJudge(Config):
    """`judge`: a model scores the answer by a rubric, or compares the answers of a group; 0 is worst, 1 is best."""

    argument: ClassVar[str] = "name"

    name: str = JUDGE
    """Name of the judge, by which its criteria are metrics, as in `reward/quality:style`."""
    method: Method = "rubric"
    """`rubric`: each answer by itself, on named criteria; `pairwise`: pairs of a group's answers, the reward is the
    share of pairs that an answer wins; `listwise`: all answers of a group in one prompt, with scores relative to each
    other."""
    url: str = ""
    """Base URL of a server of OpenAI's API, as in `http://127.0.0.1:8000/v1`."""
    model: str = ""
    """Name of the model at this server."""
    key_variable: str = ""
    """Environment variable with the server's API key."""
    policy: str = ""
    """Name of a frozen policy of `[policies]`, a checkpoint or another model, that judges in place of a `url`."""
    criteria: dict[str, Criterion | str] = {}
    """Criteria of a rubric: descriptions by name, or tables with `description` and `weight`. None: `quality`."""
    scale: PositiveInt = 10
    """Highest score of a criterion, from 0; the reward is the share of it."""
    aggregate: Literal["mean", "min", "product"] = "mean"
    """Reward of the criteria: their weighted mean, the lowest, or the product."""
    explains: bool = True
    """The judge writes its reason before its scores; False for small models, and for fewer tokens."""
    prompt: str = ""
    """File with the prompt, with places such as `{{question}}`; see docs/rewards.md. Empty: the one that is shipped."""
    samples: PositiveInt = 1
    """Times that each question is asked; the reward is the mean, and the spread a metric. More than one needs a
    `temperature`, or a comparison, whose order is drawn each time."""
    temperature: NonNegativeFloat = 0.0
    max_tokens: PositiveInt = 1024
    """Maximum number of tokens of an answer of the judge."""
    structured: Literal["auto", "json_schema", "json_object", "off"] = "auto"
    """Form of the answer that the server is asked for; `auto`: a JSON schema, and none once the server has refused
    it."""
    concurrency: PositiveInt = 64
    """Calls at once."""
    call_seconds: PositiveFloat = 60.0
    """Timeout of one call."""
    retries: NonNegativeInt = 3
    """Maximum number of further calls after one that failed or whose answer cannot be read."""
    patience_seconds: PositiveFloat = 300.0
    """Longest wait for a server that limits the rate of calls, over all calls of one question."""
    input_price: NonNegativeFloat = 0.0
    """Price of a million tokens of prompts."""
    output_price: NonNegativeFloat = 0.0
    """Price of a million tokens of answers."""
    opponents: NonNegativeInt = 0
    """`pairwise`: number of next answers, in an order that is drawn, that each is compared with; 0: all others."""
    group_seconds: PositiveFloat = 120.0
    """Comparisons: longest wait, from the first answer of a group, for the others; then those that are there are
    compared."""
    calibration: str = ""
    """`.jsonl` or `.csv` file of labelled examples, with which the judge is compared before the run starts."""
    min_agreement: Fraction = 0.0
    """Agreement with the labels below which the run is refused."""

    def __call__(self, task: Mapping[str, Any], output: str) -> Mapping[str, float]:  # noqa: ARG002 - see `panel.py`
        """Returns the verdict about the output, as `reward` and metrics.

        Raises:
            RewardError: no judge was asked about it, or it gave none.
        """
        verdict: Mapping[str, float] | str | None = task.get(VERDICTS, {}).get(self.name)
        if isinstance(verdict, str):
            raise RewardError(verdict)
        if verdict is None:
            raise RewardError(
                f"judge {self.name}: there is no verdict about this output; only the reward worker of a run and"
                " `what-if` ask a judge"
            )
        return verdict

    def prepare(self) -> None:
        """Load the prompt.

        Raises:
            RecipeError: there is no such file, it lacks a place, or no criterion has a weight.
        """
        self.template()
        if not any(criterion.weight for criterion in self.rubric().values()):
            raise RecipeError(f"judge {self.name}: all weights of its criteria are 0; give at least one a weight")

    def template(self) -> PromptTemplate:
        """Returns the prompt; raises RecipeError if there is no such file or it lacks a place."""
        return PromptTemplate.load(self.prompt, self.method)

    def rubric(self) -> dict[str, Criterion]:
        """Returns the criteria by name."""
        return {
            name: Criterion(description=entry) if isinstance(entry, str) else entry
            for name, entry in (self.criteria or OVERALL).items()
        }

    def place(self) -> str:
        """Returns where the model is asked, as errors name it."""
        return self.url or (f"policy '{self.policy}'" if self.policy else "the run's own engines")

    def compares(self) -> bool:
        """Returns True if it needs the other answers of a group."""
        return self.method != "rubric"

    def aggregate_scores(self, shares: Mapping[str, float]) -> float:
        """Returns the reward of the criteria's scores, each from 0 to 1."""
        if self.aggregate == "min":
            return min(shares.values())
        if self.aggregate == "product":
            return math.prod(shares.values())
        weights = {name: criterion.weight for name, criterion in self.rubric().items()}
        return sum(weights[name] * share for name, share in shares.items()) / sum(weights.values())


def judges_of(reward: str, options: Mapping[str, Any]) -> dict[str, ModelJudge]:
    """Returns the judges of a reward by name.

    Raises:
        RecipeError: the table of one is wrong, or two have the same name.
    """
    judges: dict[str, ModelJudge] = {}
    for table in tables_of(reward, options).values():
        try:
            judge = msgspec.convert(dict(table), ModelJudge)
        except msgspec.ValidationError as error:
            raise RecipeError(f"`task.reward_options` of a judge: {error}") from error
        if judge.name in judges:
            raise RecipeError(f"`task.reward`: two judges are called `{judge.name}`; write `judge:NAME` for each")
        judges[judge.name] = judge
    return judges


def asks_engines(reward: str, options: Mapping[str, Any]) -> bool:
    """Returns True if a judge of this reward is the run's own engines; raises as `judges_of`."""
    return any(not (judge.url or judge.policy) for judge in judges_of(reward, options).values())


def has_judge(reward: str, options: Mapping[str, Any]) -> bool:
    """Returns True if a model judges for this reward."""
    return bool(tables_of(reward, options))


def tables_of(reward: str, options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the tables of the judges in a reward, with their own options only, by name of the part.

    The name is empty for a reward that is nothing but a judge.
    """
    if reward != WEIGHTED:
        return {"": options} if reward == JUDGE else {}
    return {
        name: {key: value for key, value in table.items() if key not in OWN_KEYS}
        for name, table in options.items()
        if isinstance(table, Mapping) and table.get(RULE, name) == JUDGE
    }
