"""Log-probabilities and entropies in chunks are those of all logits at once."""

import pytest
import torch
from torch import nn

from areal_actors.training.packing import token_scores as module
from areal_actors.training.packing.token_scores import token_scores

TOKENS, HIDDEN, VOCABULARY = 37, 12, 50


class Scaled(nn.Linear):
    """A head that is not just a linear layer."""

    def forward(self, hidden):
        return super().forward(hidden) * 1.5


def at_once(head, hidden, labels, temperature):
    temperature = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
    logps = (head(hidden).double() / temperature).log_softmax(-1)
    return logps.gather(1, labels[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)


@pytest.fixture
def few_together(monkeypatch):
    """Chunks of 8 tokens, the probabilities of two of them saved."""
    monkeypatch.setattr(module, "LOGITS", {"cpu": 8 * VOCABULARY})
    monkeypatch.setattr(module, "SAVED", {"cpu": 16 * VOCABULARY})
    monkeypatch.setattr(module, "TOKENS", 1)


@pytest.fixture(params=["one chunk", "chunks"])
def chunks(request):
    if request.param == "chunks":
        request.getfixturevalue("few_together")


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kind", [nn.Linear, Scaled])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, torch.linspace(0.1, 2.0, TOKENS)], ids=["1", "0.6", "each its own"])
def test_scores_and_gradients_are_those_of_all_logits_at_once(kind, bias, temperature):
    torch.manual_seed(0)
    head = kind(HIDDEN, VOCABULARY, bias=bias)
    hidden, labels = torch.randn(TOKENS, HIDDEN, requires_grad=True), torch.randint(0, VOCABULARY, (TOKENS,))
    weights = torch.randn(TOKENS)
    inputs = [hidden, *head.parameters()]
    logp, entropy = token_scores(head, hidden, labels, temperature, torch.float32)
    wanted_logp, wanted_entropy = at_once(head, hidden, labels, temperature)
    torch.testing.assert_close(logp, wanted_logp.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, wanted_entropy.float(), atol=1e-5, rtol=1e-5)
    assert not entropy.requires_grad
    found = torch.autograd.grad((logp * weights).sum(), inputs)
    wanted = torch.autograd.grad((wanted_logp * weights).sum(), inputs)
    for ours, own in zip(found, wanted, strict=True):
        assert (ours - own).norm() < 1e-5 * own.norm()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("temperature", [1.0, torch.linspace(0.1, 2.0, TOKENS)], ids=["1", "each its own"])
def test_entropies_have_the_gradient_of_all_logits_at_once_on_request(temperature):
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCABULARY)
    hidden, labels = torch.randn(TOKENS, HIDDEN, requires_grad=True), torch.randint(0, VOCABULARY, (TOKENS,))
    inputs, weights = [hidden, *head.parameters()], torch.randn(2, TOKENS)
    scores = token_scores(head, hidden, labels, temperature, torch.float32, entropy_gradient=True)
    found = torch.autograd.grad(sum((own * column).sum() for own, column in zip(scores, weights, strict=True)), inputs)
    divisor = temperature.unsqueeze(1) if isinstance(temperature, torch.Tensor) else temperature
    distribution = torch.distributions.Categorical(logits=head(hidden.double().float()).double() / divisor)
    exact = (distribution.log_prob(labels), distribution.entropy())
    wanted = torch.autograd.grad(sum((own * column).sum() for own, column in zip(exact, weights, strict=True)), inputs)
    for ours, own in zip(found, wanted, strict=True):
        assert (ours - own).norm() < 1e-5 * own.norm()


@pytest.mark.usefixtures("chunks")
def test_the_gradient_is_that_of_numeric_differentiation():
    torch.manual_seed(1)
    head = nn.Linear(5, 11).double()
    hidden, labels = torch.randn(9, 5, dtype=torch.float64, requires_grad=True), torch.randint(0, 11, (9,))
    # The scores are float32 wherever they come from, so the step is large and the tolerance wide.
    assert torch.autograd.gradcheck(
        lambda given: token_scores(head, given, labels, 0.7, torch.float64)[0],
        [hidden],
        eps=1e-2,
        atol=2e-3,
        fast_mode=True,
    )


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("temperature", [0.6, torch.linspace(0.1, 2.0, TOKENS)], ids=["0.6", "each its own"])
def test_below_a_frozen_head_scores_and_gradient_are_the_same_and_logits_are_computed_once(temperature):
    torch.manual_seed(0)
    head, hidden = nn.Linear(HIDDEN, VOCABULARY), torch.randn(TOKENS, HIDDEN, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (TOKENS,))
    weights = torch.randn(TOKENS)
    trained = token_scores(head, hidden, labels, temperature, torch.float32)
    (wanted,) = torch.autograd.grad((trained[0] * weights).sum(), [hidden])
    frozen = token_scores(head.requires_grad_(requires_grad=False), hidden, labels, temperature, torch.float32)
    head.weight.fill_(torch.nan)
    (frozen[0] * weights).sum().backward()
    assert all(torch.equal(ours, own) for ours, own in zip(frozen, trained, strict=True))
    torch.testing.assert_close(hidden.grad, wanted)
    assert head.weight.grad is None


def test_no_token_scores_nothing_and_has_a_gradient_of_zero():
    head = nn.Linear(HIDDEN, VOCABULARY)
    hidden = torch.randn(0, HIDDEN, requires_grad=True)
    logp, entropy = token_scores(head, hidden, torch.zeros(0, dtype=torch.int64), 1.0, torch.float32)
    assert (len(logp), len(entropy)) == (0, 0)
    assert not any(gradient.any() for gradient in torch.autograd.grad(logp.sum(), [hidden, head.weight]))


@pytest.mark.usefixtures("few_together")
def test_logits_of_one_chunk_at_a_time_are_kept():
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, given=(), options=None):
            nonlocal largest
            result = function(*given, **(options or {}))
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (VOCABULARY,) and tensor.dim() == 2:
                    largest = max(largest, len(tensor))
            return result

    head, hidden = nn.Linear(HIDDEN, VOCABULARY), torch.randn(TOKENS, HIDDEN, requires_grad=True)
    with Watch():
        token_scores(head, hidden, torch.zeros(TOKENS, dtype=torch.int64), 1.0, torch.float32)[0].sum().backward()
    assert (
        largest == HIDDEN
    )  # the transposed gradient of the weights, [hidden, vocabulary]; the logits are [8, vocabulary]
