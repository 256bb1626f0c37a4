"""Inference workers with the weights of a candidate: the last ones of a served model that has one."""

from __future__ import annotations

from areal_actors.canary.candidate_worker import CandidateWorker
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.recipe.recipe import Recipe


def worker_class(recipe: Recipe, instance: str) -> type[InferenceWorker]:
    """Returns the class of an inference worker, such as `inference_worker-1`."""
    number = int(instance.rpartition("-")[2])
    served = recipe.actors.inference_worker.count - recipe.gateway.candidate.workers
    return CandidateWorker if recipe.has_candidate() and number >= served else InferenceWorker
