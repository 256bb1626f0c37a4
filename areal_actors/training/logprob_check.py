"""Training-inference mismatch.

The trainer's log-probabilities under the weights that sampled, against the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_actors.core.routes import RouteShape
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.training.algorithms.off_policy import kl_estimates
from areal_actors.training.algorithms.veto import VETO_THRESHOLD, is_catastrophic
from areal_actors.training.host_copies import allocated_bytes, copy_to_host
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer
from areal_actors.training.packing.tensors import Sharing, make_micro_batches
from areal_actors.training.ranks import SINGLE_PROCESS, Ranks, TokenColumn
from areal_actors.weights.source_tensors import model_tensors
from areal_actors.weights.transfer import read_tensors

SMALL_MODEL = 50_000_000
"""Maximum of trained parameters for which `older_weights = "auto"` keeps copies on the device."""
HOST_SHARE = 0.25
"""Maximum share of the host's memory for copies of larger models; of its whole memory, so that all ranks decide
alike."""
PARAMETER_BYTES = 4
Place = Literal["on", "host", "published", "off"]
OlderWeights = Literal["auto", "on", "host", "off"]
Weights = Mapping[str, Tensor]


class LogprobCheck:
    """Rescores tokens under the weight version that sampled each of them.

    A generation engine that recomputes its KV cache at every weight update samples a token of version v from weights v
    over the whole sequence before it, whichever versions sampled that. So scoring the full sequence under weights v
    must give the same number, up to rounding. Copies of the last versions are kept: of small models on the device; of
    larger ones the published files serve, which inference workers on a CPU read too, or copies in the host's memory, if
    it has room.
    """

    def __init__(
        self,
        scorer: TokenScorer | ValueScorer,
        versions: int,
        sequences: int,
        budget: int,
        ranks: Ranks = SINGLE_PROCESS,
        sharing: Sharing = "off",
        *,
        older_weights: OlderWeights = "auto",
        complete: bool = False,
        published: bool = False,
        routes: RouteShape | None = None,
    ) -> None:
        """Keep copies of the trained weights.

        Args:
            scorer: the trained model.
            versions: maximum of copies: the current version and those before it.
            sequences: sequences of each version that are rescored per step; 0 for none.
            budget: computed tokens of a micro-batch.
            ranks: the processes that train together.
            sharing: as in `make_micro_batches`.
            older_weights: keep copies on the device, or in the `host`'s memory; see `TrainerSettings`.
            complete: rescore all sequences of older versions. For the current version the step's own forward pass gives
                the same.
            published: the published files of a version are its weights, to the last bit, and this process may map them.
            routes: as in `make_micro_batches`.
        """
        self._scorer = scorer
        self._sequences = sequences
        self._budget = budget
        self._ranks = ranks
        self._sharing = sharing
        self._complete = complete
        self._routes = routes
        self._trained = {
            name: parameter for name, parameter in scorer.model.named_parameters() if parameter.requires_grad
        }
        if older_weights == "auto":
            locked = any(parameter.is_cuda for parameter in self._trained.values())
            place = _place(
                ranks.count_trainable(scorer.model),
                versions,
                complete=complete,
                published=published,
                page_locked=locked,
            )
        else:
            place = older_weights
        self._place = place if sequences > 0 or complete else "off"
        self._versions = versions
        self.copies: dict[int, Weights] = {}
        """Copies on the device, by version; checkpoints have them."""
        self._host_copies: dict[int, Weights] = {}
        """Copies of this rank's shards in the host's memory, by version; lost with the process."""
        self._unused_copies: list[Weights] = []
        """Memory of copies in the host's memory, to be written again."""
        self._published: dict[int, str] = {}
        """Folders of published versions; one that is gone is not scored."""

    def store_copy(self, weight_version: int) -> None:
        """Copy the current weights as this version, and discard copies beyond the maximum, oldest first."""
        if self._place == "on":
            self.copies[weight_version] = {
                name: parameter.detach().clone() for name, parameter in self._trained.items()
            }
        elif self._place == "host":
            shards = {name: _shard(parameter.detach()) for name, parameter in self._trained.items()}
            self._host_copies[weight_version] = copy_to_host(shards, self._take_unused_copy(weight_version))
        for kept in (self.copies, self._host_copies):
            _discard_oldest(kept, self._versions)

    def _take_unused_copy(self, weight_version: int) -> Weights:
        """Take the memory of a copy in the host's memory that is not needed any more; empty if there is none."""
        if weight_version in self._host_copies:
            return self._host_copies.pop(weight_version)
        if self._unused_copies:
            return self._unused_copies.pop()
        return self._host_copies.pop(min(self._host_copies)) if len(self._host_copies) >= self._versions else {}

    def note_published(self, weight_version: int, folder: str) -> None:
        """Record the folder with the published weights of a version."""
        if self._place == "published":
            self._published[weight_version] = folder
            _discard_oldest(self._published, self._versions)

    def restore(self, copies: dict[int, Weights]) -> None:
        """Continue with the copies of a checkpoint, whose weights are loaded."""
        self._unused_copies += self._host_copies.values()
        self.copies, self._host_copies = copies, {}

    @torch.no_grad()
    def rescore(self, sequences: Sequence[TrainingSequence], weight_version: int) -> Tensor:
        """Each trained token's log-probability under the version that sampled it.

        float32 `[tokens]` on the CPU, NaN where not scored.
        Tokens are in the order of `StepTokens`. Tokens of versions without a copy are not scored, nor (unless
        `complete`) sequences beyond `sequences`, nor tokens behind positions whose replayed experts were chosen by
        older weights than theirs.
        """
        versions = torch.from_numpy(
            np.concatenate([sequence.versions[1:][sequence.loss_mask[1:]] for sequence in sequences])
        )
        column = torch.full((len(versions),), torch.nan)
        if self._place == "host" and weight_version not in self._host_copies:  # a checkpoint was loaded
            self.store_copy(weight_version)
        on_disk = [version for version, folder in self._published.items() if Path(folder).is_dir()]
        for version in sorted({*self.copies, *self._host_copies, *on_disk, weight_version}):
            picked = self._select_sequences(sequences, version, every=self._complete and version != weight_version)
            if picked:
                with nullcontext() if version == weight_version else self._weights_of(version, weight_version):
                    indices, logp = self._score(sequences, picked, version)
                column[(versions == version).nonzero()[:, 0][indices]] = logp
        if self._routes is not None and not self._complete:
            column[
                torch.from_numpy(
                    np.concatenate([_behind_older_routes(row)[1:][row.loss_mask[1:]] for row in sequences])
                )
            ] = torch.nan
        return column

    def _select_sequences(self, sequences: Sequence[TrainingSequence], version: int, *, every: bool) -> list[int]:
        """Sequences with trained tokens of this version: all, or at most `self._sequences` of them, evenly spread."""
        having = [index for index, sequence in enumerate(sequences) if _sampled_mask(sequence, version)[1:].any()]
        if every or not having:
            return having
        return having[:: -(-len(having) // self._sequences)] if self._sequences else []

    @contextmanager
    def _weights_of(self, version: int, weight_version: int) -> Iterator[None]:
        """Swap in the trained weights of another version within the context."""
        if self._place == "published":
            with _mapped_weights(self._scorer.model, self._trained, self._published[version]):
                yield
            return
        if self._place == "host":
            own: Weights = self._host_copies[weight_version]
        else:
            own = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        try:
            self._copy_weights(self._host_copies.get(version) or self.copies[version])
            yield
        finally:
            self._copy_weights(own)

    def _copy_weights(self, weights: Weights) -> None:
        for name, parameter in self._trained.items():
            whole = isinstance(weights[name], DTensor)
            (parameter.data if whole else _shard(parameter.data)).copy_(weights[name])

    def _score(
        self, sequences: Sequence[TrainingSequence], picked: Sequence[int], version: int
    ) -> tuple[Tensor, Tensor]:
        """Score the trained tokens of one version in these sequences.

        Indices among all tokens of that version, and log-probabilities.
        """
        device = next(self._scorer.parameters()).device
        logp, scored = TokenColumn(), TokenColumn()
        micro_batches = make_micro_batches(
            sequences,
            picked,
            self._budget,
            device,
            lambda sequence: _sampled_mask(sequence, version),
            sharing=self._sharing,
            routes=self._routes,
        )
        for batch in self._ranks.distribute(micro_batches):
            logp.add(batch, self._scorer(batch)[0])
            scored.add(batch, torch.ones_like(batch.labels))
        tokens = sum(int(_sampled_mask(sequence, version)[1:].sum()) for sequence in sequences)
        indices = scored.gather(self._ranks, tokens).nonzero()[:, 0]
        return indices, logp.gather(self._ranks, tokens)[indices]


@contextmanager
def _mapped_weights(model: Any, trained: Mapping[str, nn.Parameter], folder: str) -> Iterator[None]:
    """Have the parameters use the tensors of a folder, which are mapped and not copied, within the context."""
    tensors = model_tensors(model, read_tensors(Path(folder)))
    own = {name: parameter.data for name, parameter in trained.items()}
    try:
        for name, parameter in trained.items():
            parameter.data = tensors[name]
        yield
    finally:
        for name, parameter in trained.items():
            parameter.data = own[name]


def _discard_oldest(by_version: dict[int, Any], most: int) -> None:
    for old in sorted(by_version)[:-most]:
        del by_version[old]


def _place(
    parameters: int, versions: int, *, complete: bool, published: bool = False, page_locked: bool = False
) -> Place:
    """Place of the copies under `auto`.

    Corrections that need all of them have none of a larger model, since they would not be in checkpoints.
    """
    if parameters <= SMALL_MODEL:
        return "on"
    if complete or versions == 1:
        return "off"
    copy_bytes = parameters * PARAMETER_BYTES
    fits = (
        allocated_bytes(copy_bytes) if page_locked else copy_bytes
    ) * versions <= HOST_SHARE * psutil.virtual_memory().total
    return "published" if published else "host" if fits else "off"


def _shard(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _sampled_mask(sequence: TrainingSequence, version: int) -> NDArray[np.bool_]:
    """The trained tokens of a sequence that a version sampled: bool `[n]`."""
    sampled: NDArray[np.bool_] = np.equal(sequence.versions, version) & sequence.loss_mask
    return sampled


def _behind_older_routes(sequence: TrainingSequence) -> NDArray[np.bool_]:
    """Tokens of a sequence with routes that follow one of an older version: bool `[n]`.

    The engine computed the positions before again under their own weights, maybe with other experts than those
    recorded.
    """
    if not sequence.routes:
        return np.zeros(len(sequence.token_ids), dtype=bool)
    newest = np.iinfo(np.int32).max
    oldest = np.minimum.accumulate(np.where(sequence.versions == PROMPT_VERSION, newest, sequence.versions))
    return sequence.versions > oldest


def mismatch_metrics(sequences: Sequence[TrainingSequence], behaviour: Tensor, rescored: Tensor) -> dict[str, float]:
    """Mismatch of recorded log-probabilities and the trainer's own, over the rescored tokens.

    Args:
        sequences: sequences of the step.
        behaviour: `[tokens]` on the CPU, recorded by the engine.
        rescored: `[tokens]` on the CPU, as `LogprobCheck.rescore` gives them.

    Returns:
        `train_infer_logprob_diff_max`, in nats (infinite if one is not a number), and `parity_tokens`; if there are
        any,
        `mismatch_kl_k1`, `_k2`, `_k3` and `mismatch_vetoed_frac`, and where the largest difference is:
            `mismatch_worst_sequence`,
        `_position` and `_logprob` (the trainer's). All but the first also for each inference worker that the sequences
        name, as `NAME/WORKER`.
    """
    rescored_positions = (~rescored.isnan()).nonzero()[:, 0]
    if not len(rescored_positions):
        return {"train_infer_logprob_diff_max": 0.0, "parity_tokens": 0.0}
    differences = rescored[rescored_positions].double() - behaviour[rescored_positions].double()
    positions = [np.flatnonzero(sequence.loss_mask[1:]) + 1 for sequence in sequences]
    sequence_of, position_of = (
        np.repeat(np.arange(len(sequences)), list(map(len, positions))),
        np.concatenate(positions),
    )
    # A NaN compares false with everything: it must not pass for parity.
    sizes = differences.abs().nan_to_num(nan=torch.inf)

    def of(tokens: Tensor) -> dict[str, float]:
        worst = int(rescored_positions[tokens][sizes[tokens].argmax()])
        return {
            "parity_tokens": float(len(tokens)),
            **kl_estimates(differences[tokens], "mismatch_kl"),
            "mismatch_vetoed_frac": float(is_catastrophic(differences[tokens], VETO_THRESHOLD).double().mean()),
            "mismatch_worst_sequence": float(sequence_of[worst]),
            "mismatch_worst_position": float(position_of[worst]),
            "mismatch_worst_logprob": float(rescored[worst]),
        }

    workers = _workers(sequences)[rescored_positions.numpy()]
    metrics = {"train_infer_logprob_diff_max": float(sizes.max()), **of(torch.arange(len(rescored_positions)))}
    for worker in sorted(set(workers.tolist()) - {""}):
        own = torch.from_numpy(np.flatnonzero(workers == worker))
        metrics |= {f"{name}/{worker}": value for name, value in of(own).items()}
    return metrics


def _workers(sequences: Sequence[TrainingSequence]) -> NDArray[np.str_]:
    """The inference worker that sampled each trained token, empty where it is not recorded: `[tokens]`."""
    columns = []
    for sequence in sequences:
        names = np.full(len(sequence.token_ids), "", dtype=object)
        for call in sequence.calls:
            names[call.start : call.end] = call.worker
        columns.append(names[1:][sequence.loss_mask[1:]])
    return np.concatenate(columns).astype(np.str_)
