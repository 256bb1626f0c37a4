"""Limits of a model on the rows that it is trained on, read from its folder without loading it."""

from __future__ import annotations

from areal_actors.sequences.row_check import RowLimits
from areal_actors.tokenization.tokenizer import context_of, vocabulary_of


def row_limits(model_folder: str) -> RowLimits:
    """Vocabulary and context of the model in a Hugging Face folder."""
    return RowLimits(vocabulary=vocabulary_of(model_folder), context=context_of(model_folder) or 0)
