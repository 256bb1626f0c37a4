"""Before a run: compares the judges of its reward with the labelled examples that the recipe names."""

from __future__ import annotations

from pathlib import Path

from areal_actors.core.errors import ArealError, SetupError
from areal_actors.messages import JudgeCalibrated
from areal_actors.processes.judge_models import model_outside_run
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.judge.answer_store import ANSWERS, AnswerStore
from areal_actors.rewards.judge.calibration import calibrate
from areal_actors.rewards.judge.inquiry import Inquiry
from areal_actors.rewards.judge.settings import judges_of


async def calibrate_judges(recipe: Recipe) -> list[JudgeCalibrated]:
    """Returns the agreement of each judge that has a `calibration`.

    Raises:
        SetupError: a judge does not answer, its examples are wrong, or it agrees less than `min_agreement`.
    """
    task, events = recipe.task, []
    judges = [judge for judge in judges_of(task.reward, task.reward_options).values() if judge.calibration]
    # beside the runs: a second check asks nothing again
    store = AnswerStore(file=Path(recipe.folder) / ANSWERS)
    for judge in judges:
        inquiry = Inquiry(judge, model_outside_run(recipe, judge), store, recipe.seed)
        try:
            event = await calibrate(inquiry)
        except ArealError as error:
            raise SetupError(f"task.reward: judge {judge.name} cannot be calibrated: {error}") from error
        finally:
            await inquiry.close()
        if event.agreement < judge.min_agreement:
            raise SetupError(
                f"task.reward: {event.sentence()}, which is below min_agreement = {judge.min_agreement:g};"
                " improve its prompt or criteria, name a better model, or lower min_agreement"
            )
        events.append(event)
    return events
