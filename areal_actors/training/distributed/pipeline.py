"""Pipeline parallelism with a one-forward-one-backward (1F1B) schedule of micro-batches.

A stage sends hidden states to the next stage, and their gradient to the previous one; both are autograd functions, so a
backward pass on any stage is the whole chain rule. A stage runs as many forward passes as there are stages after it
before its first backward pass, and then alternates (Narayanan et al. 2019, PipeDream, https://arxiv.org/abs/1806.03377,
section 3.2, but weights change only at the end). All stages have all micro-batches, so shapes are not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work
from torch.distributed.tensor import DTensor

from areal_actors.training.distributed.mesh import Mesh

MicroBatch = TypeVar("MicroBatch")
Output = TypeVar("Output")


def one_forward_one_backward(
    micro_batches: Iterable[MicroBatch],
    ahead: int,
    forward: Callable[[MicroBatch], Output],
    backward: Callable[[MicroBatch, Output], None],
) -> None:
    """Run all forward and backward passes, both in the order of the micro-batches.

    At most `ahead` + 1 micro-batches await their backward pass.
    """
    begun: deque[tuple[MicroBatch, Output]] = deque()
    for batch in micro_batches:
        begun.append((batch, forward(batch)))
        if len(begun) > ahead:
            backward(*begun.popleft())
    while begun:
        backward(*begun.popleft())


class Pipeline:
    """This rank's stage, and its communication with the neighbouring stages."""

    def __init__(self, mesh: Mesh) -> None:
        self.stage = mesh.stage
        self.stages = mesh.layout.pipeline
        self.is_first = self.stage == 0
        self.is_last = self.stage == self.stages - 1
        self._device = mesh.device
        self._forward_group: ProcessGroup = mesh.forward_group
        self._backward_group: ProcessGroup = mesh.backward_group
        self._in_flight: deque[tuple[Work, Tensor]] = deque()
        self._shared: list[nn.Parameter] = []

    # ------------------------------------------------------------ the passes

    def run_micro_batches(
        self,
        micro_batches: Sequence[MicroBatch],
        forward: Callable[[MicroBatch], Output],
        backward: Callable[[MicroBatch, Output], None],
    ) -> None:
        """See `Ranks.run_micro_batches`."""
        one_forward_one_backward(micro_batches, self.stages - 1 - self.stage, forward, backward)
        while self._in_flight:
            self._in_flight.popleft()[0].wait()

    def run(
        self, plain: Callable[..., Any], input_ids: Tensor, width: int, dtype: torch.dtype, named: Mapping[str, Any]
    ) -> Any:
        """Run this stage's blocks on token ids, or on the hidden states of the previous stage.

        Args:
            plain: forward of the base model; modules of other stages pass their input through.
            input_ids: int64 `[rows, positions]`.
            width: size of a hidden state.
            dtype: dtype of hidden states.
            named: further arguments of the forward.

        Returns:
            Its output, with hidden states `[rows, positions, width]`: 0 on all stages but the last; their backward pass
            is this stage's.
        """
        # It requires a gradient, so that there is a backward pass even if no earlier parameter is trained.
        anchor = torch.zeros((), device=self._device, requires_grad=True)
        if self.is_first:
            output = plain(input_ids=input_ids, **named)
        else:
            hidden = ReceiveActivations.apply(anchor, self, (*input_ids.shape, width), dtype)  # type: ignore[no-untyped-call]
            output = plain(inputs_embeds=hidden, **named)
        if not self.is_last:
            output.last_hidden_state = SendActivations.apply(anchor, output.last_hidden_state.to(dtype), self)  # type: ignore[no-untyped-call]
        return output

    def send(self, tensor: Tensor, *, forward: bool) -> None:
        """Send to the next (`forward`) or the previous stage, without waiting for the transfer."""
        group, neighbour = (self._forward_group, self.stage + 1) if forward else (self._backward_group, self.stage - 1)
        tensor = tensor.contiguous()
        work = dist.isend(tensor, group=group, group_dst=neighbour)
        assert work is not None
        self._in_flight.append((work, tensor))
        while len(self._in_flight) > 2 * self.stages:  # more are only in flight if the receiver is behind
            self._in_flight.popleft()[0].wait()

    def receive(self, shape: Sequence[int], dtype: torch.dtype, *, forward: bool) -> Tensor:
        """Receive a tensor of `send` in this direction."""
        group, neighbour = (self._forward_group, self.stage - 1) if forward else (self._backward_group, self.stage + 1)
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        dist.recv(tensor, group=group, group_src=neighbour)
        return tensor

    def agree(self, value: bool) -> bool:  # noqa: FBT001 - `bool` replaces it without stages
        """True if `found` is true on every stage."""
        agreed = torch.tensor(value, dtype=torch.int64, device=self._device)
        dist.all_reduce(agreed, dist.ReduceOp.MIN, group=self._forward_group)
        return bool(agreed)

    # ------------------------------------------------------------ parameters shared by the first and the last stage

    def share(self, parameter: nn.Parameter) -> None:
        """Register a parameter that the first and the last stage share."""
        self._shared.append(parameter)

    @property
    def shared(self) -> set[int]:
        """`id` of the parameters that this stage shares with another."""
        return {id(parameter) for parameter in self._shared}

    @torch.no_grad()
    def reduce_shared_gradients(self, parameters: Container[int]) -> None:
        """Sum the gradients of shared parameters (those with these `id`) over both stages; bit-identical on both."""
        counterpart = self.stages - 1 - self.stage
        ours, counterpart_group = (
            (self._forward_group, self._backward_group)
            if self.is_first
            else (self._backward_group, self._forward_group)
        )
        for parameter in self._shared:
            if parameter.grad is None or id(parameter) not in parameters:
                continue
            own = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            sending = dist.isend(own, group=ours, group_dst=counterpart)
            received = torch.empty_like(own)
            dist.recv(received, group=counterpart_group, group_src=counterpart)
            assert sending is not None
            sending.wait()
            own.add_(received)

    # ------------------------------------------------------------ whole models

    def count_trainable(self, parameters: Iterable[nn.Parameter]) -> int:
        """Number of trained parameters of all stages, given those of this one."""
        counted = self.shared if self.is_last else set()
        own = sum(parameter.numel() for parameter in parameters if id(parameter) not in counted)
        total = torch.tensor(own, dtype=torch.int64, device=self._device)
        dist.all_reduce(total, group=self._forward_group)
        return int(total)

    def collect(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Collect the tensors of all stages by name on the first stage ({} elsewhere), on the CPU.

        Tied names stay tied.
        """
        first = {id(tensor): name for name, tensor in reversed(tensors.items())}
        described = [(name, first[id(tensor)], tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        every: list[Any] = [None] * self.stages
        dist.all_gather_object(every, described, group=self._forward_group)
        names = {name for name, _, _, _ in every[0]}
        if not self.is_first:
            for name, same, _, _ in described:
                if name == same and name not in names:
                    dist.send(tensors[name].contiguous(), group=self._forward_group, group_dst=0)
            return {}
        whole = dict(tensors)
        for stage, stage_tensors in enumerate(every[1:], 1):
            for name, same, shape, dtype in stage_tensors:
                if name in names:
                    continue
                if name != same:
                    whole[name] = whole[same]
                    continue
                whole[name] = torch.empty(shape, dtype=dtype)
                dist.recv(whole[name], group=self._forward_group, group_src=stage)
        return whole


class ReceiveActivations(torch.autograd.Function):
    """Receives hidden states of the previous stage; the backward pass sends their gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, pipeline: Pipeline, shape: Sequence[int], dtype: torch.dtype) -> Tensor:  # noqa: ARG004
        """Receive; for the anchor see `Pipeline.run`."""
        ctx.pipeline = pipeline
        return pipeline.receive(shape, dtype, forward=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        """Send."""
        ctx.pipeline.send(grads[0], forward=False)
        return None, None, None, None


class SendActivations(torch.autograd.Function):
    """Sends hidden states to the next stage.

    The backward pass receives their gradient and ignores that of the returned zeros.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, hidden: Tensor, pipeline: Pipeline) -> Tensor:  # noqa: ARG004
        """Send; for the anchor see `Pipeline.run`."""
        ctx.pipeline, ctx.shape, ctx.dtype = pipeline, hidden.shape, hidden.dtype
        pipeline.send(hidden.detach(), forward=True)
        return torch.zeros_like(hidden)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Receive."""
        return None, ctx.pipeline.receive(ctx.shape, ctx.dtype, forward=False), None
