"""Sampling from `areal-actors serve tinker`: the weights that a client asks for, their log-probabilities, and the
request's parameters."""

import asyncio

import numpy as np
import pytest
import torch
from support.tinker_harness import NAME, datum, serving
from support.tiny_trainer import logps, write_model
from transformers import AutoModelForCausalLM

from areal_actors.tinker.sessions import TEMPORARY_SAMPLERS

DATA = [datum([5, 6, 7, 8], [6, 7, 8, 9], weights=[1, 1, 1, 1])]
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def client(folder, tmp_path):
    async with serving(folder, tmp_path / "state", tmp_path / "temporary") as harness:
        yield harness


def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder).float().eval()


def check_logprobs(model, prompt, sequence, temperature=1.0):
    ids = [*prompt, *sequence["tokens"]]
    expected = logps(model, ids, temperature)[len(prompt) - 1 :]
    np.testing.assert_allclose(sequence["logprobs"], expected, atol=2e-5)


def same_samples(one, other):
    """Equal tokens; their log-probabilities are rounded otherwise if other completions were decoded beside them."""
    pairs = list(zip(one["sequences"], other["sequences"], strict=True))
    return all(
        a["tokens"] == b["tokens"] and np.allclose(a["logprobs"], b["logprobs"], rtol=0, atol=1e-5) for a, b in pairs
    )


async def test_completions_have_the_log_probabilities_of_the_model(client, folder):
    sampler = await client.sampler()
    found = await client.sample(sampler, PROMPT, num_samples=4, sampling_params={"temperature": 0.7, "top_p": 0.9})
    model = plain(folder)
    assert len(found["sequences"]) == 4
    for sequence in found["sequences"]:
        check_logprobs(model, PROMPT, sequence, 0.7)
        assert sequence["stop_reason"] in ("stop", "length")
    assert len({tuple(sequence["tokens"]) for sequence in found["sequences"]}) > 1
    again = await client.sample(sampler, PROMPT, num_samples=4, sampling_params={"temperature": 0.7, "top_p": 0.9})
    assert same_samples(found, again)


async def test_each_sampler_has_the_weights_of_its_time(client, folder, tmp_path):
    model_id = await client.model()
    samplers = {"base": await client.sampler(1), "first": None, "second": None}
    for name in ("first", "second"):
        await client.train(model_id, DATA, lr=3e-2)
        path = (await client.done("save_weights_for_sampler", {"model_id": model_id, "path": name}))["path"]
        samplers[name] = await client.sampler(len(samplers) + len(name), model_path=path)
    temporary = (await client.done("save_weights_for_sampler", {"model_id": model_id}))["sampling_session_id"]
    await client.train(model_id, DATA, lr=3e-2)
    names = ["base", "first", "second", "first", "base", "second"]
    results = await asyncio.gather(*(client.sample(samplers[name], PROMPT, num_samples=2) for name in names))
    by_name = dict(zip(names, results, strict=True))
    assert all(same_samples(result, by_name[name]) for name, result in zip(names, results, strict=True))
    assert not same_samples(by_name["base"], by_name["first"])
    assert not same_samples(by_name["first"], by_name["second"])
    assert same_samples(await client.sample(temporary, PROMPT, num_samples=2), by_name["second"])
    run = next((tmp_path / "state" / "checkpoints").iterdir())
    check_logprobs(plain(folder), PROMPT, by_name["base"]["sequences"][0])
    check_logprobs(plain(run / "sampler_weights" / "first"), PROMPT, by_name["first"]["sequences"][0])
    described = await client.get(f"samplers/{samplers['first']}")
    assert described == {
        "sampler_id": samplers["first"],
        "base_model": NAME,
        "model_path": f"tinker://{model_id}/sampler_weights/first",
    }


async def test_the_trainer_computes_the_log_probabilities_that_were_sampled(client):
    model_id = await client.model()
    await client.train(model_id, DATA)
    sampler = (await client.done("save_weights_for_sampler", {"model_id": model_id}))["sampling_session_id"]
    (sequence,) = (await client.sample(sampler, PROMPT))["sequences"]
    tokens, before = sequence["tokens"], len(PROMPT) - 1
    inputs = {"logprobs": [0.0] * before + sequence["logprobs"], "advantages": [0.0] * before + [1.0] * len(tokens)}
    one = datum([*PROMPT, *tokens[:-1]], [0] * before + tokens, **inputs)
    body = {"model_id": model_id, "forward_input": {"data": [one], "loss_fn": "importance_sampling"}}
    output = await client.done("forward", body)
    np.testing.assert_allclose(
        output["loss_fn_outputs"][0]["logprobs"]["data"][before:], sequence["logprobs"], atol=2e-5
    )
    assert output["metrics"]["loss:sum"] == pytest.approx(-len(tokens), rel=1e-3)


async def test_prompts_are_scored(client, folder):
    sampler = await client.sampler()
    found = await client.sample(sampler, PROMPT, prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3)
    expected = logps(plain(folder), PROMPT)
    assert found["prompt_logprobs"][0] is None
    np.testing.assert_allclose(found["prompt_logprobs"][1:], expected, atol=2e-5)
    assert found["topk_prompt_logprobs"][0] is None
    scores = plain(folder)(torch.tensor([PROMPT])).logits[0].log_softmax(-1).detach()
    for position, row in enumerate(found["topk_prompt_logprobs"][1:]):
        best = scores[position].topk(2)
        assert [token for token, _ in row] == best.indices.tolist()
        np.testing.assert_allclose([logprob for _, logprob in row], best.values, atol=2e-5)
    (sequence,) = found["sequences"]
    for token, logprob, row in zip(sequence["tokens"], sequence["logprobs"], sequence["topk_logprobs"], strict=True):
        assert len(row) == 3
        assert all(listed == logprob for listed_token, listed in row if listed_token == token)
    last = await client.sample(sampler, PROMPT, prompt_logprobs=True, prompt_logprobs_last_n=1)
    assert last["prompt_logprobs"][:3] == [None, None, None]
    assert last["prompt_logprobs"][3] == pytest.approx(found["prompt_logprobs"][3], abs=1e-5)


async def test_tokens_that_a_request_names_are_scored(client, folder):
    sampler = await client.sampler()
    scores = plain(folder)(torch.tensor([PROMPT])).logits[0].log_softmax(-1).detach().numpy()
    dense = {"data": [9, -1, 10, 11, 12, -1], "dtype": "int64", "shape": [3, 2]}
    found = (await client.sample(sampler, PROMPT, target_prompt_logprobs=dense))["target_prompt_logprobs"]
    assert found["shape"] == [3, 2]
    expected = [scores[0, 9], 0, scores[1, 10], scores[1, 11], scores[2, 12], 0]
    np.testing.assert_allclose(found["data"], expected, atol=2e-5)
    sparse = {
        "data": [10, 12],
        "dtype": "int64",
        "shape": [3, 2],
        "sparse_crow_indices": [0, 0, 1, 2],
        "sparse_col_indices": [1, 0],
    }
    found = (await client.sample(sampler, PROMPT, target_prompt_logprobs=sparse))["target_prompt_logprobs"]
    assert (found["sparse_crow_indices"], found["sparse_col_indices"]) == ([0, 0, 1, 2], [1, 0])
    np.testing.assert_allclose(found["data"], [scores[1, 10], scores[2, 12]], atol=2e-5)
    for wrong, reason in (
        ({"shape": [2, 3]}, "has shape"),
        ({"data": [9] * 5 + [9999]}, "holds a token outside"),
        ({"shape": 3}, "not a matrix"),
    ):
        assert reason in await client.failed(
            "asample", client.sample_body(sampler, PROMPT, target_prompt_logprobs=dense | wrong)
        )


async def test_completions_end_at_stop_strings_and_at_stop_tokens(client):
    sampler = await client.sampler()
    (free,) = (await client.sample(sampler, PROMPT, sampling_params={"max_tokens": 12}))["sequences"]
    assert (len(free["tokens"]), free["stop_reason"]) == (12, "length")
    ending = free["tokens"][4]
    expected = free["tokens"][: free["tokens"].index(ending) + 1]
    (stopped,) = (await client.sample(sampler, PROMPT, sampling_params={"max_tokens": 12, "stop": [ending]}))[
        "sequences"
    ]
    assert (stopped["tokens"], stopped["stop_reason"]) == (expected, "stop")
    assert stopped["logprobs"] == free["logprobs"][: len(expected)]
    tokenizer = client.service.sampler._engine.tokenizer
    text = tokenizer.decode(expected)
    (stopped,) = (await client.sample(sampler, PROMPT, sampling_params={"max_tokens": 12, "stop": text}))["sequences"]
    assert (stopped["tokens"], stopped["stop_reason"]) == (expected, "stop")


async def test_temperature_0_takes_the_most_likely_tokens(client, folder):
    sampler = await client.sampler()
    (found,) = (await client.sample(sampler, PROMPT, sampling_params={"temperature": 0.0, "max_tokens": 3}))[
        "sequences"
    ]
    ids = list(PROMPT)
    for _ in range(3):
        ids.append(int(plain(folder)(torch.tensor([ids])).logits[0, -1].argmax()))
    assert found["tokens"] == ids[len(PROMPT) :]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"sampling_params": {"max_tokens": 9000}}, "both are at most 8192"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens is at least 1"),
        ({"sampling_params": {"stop": []}}, "leave it out"),
        ({"sampling_params": {"top_p": 1.5}}, "top_p is 1.5"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"topk_prompt_logprobs": 21}, "topk_prompt_logprobs is 21"),
        ({"prompt_logprobs_last_n": 1}, "needs prompt_logprobs"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 4}, "write 1 to 3"),
        ({"record_stability_info": True}, "stable_reinforce"),
        ({"prompt_alt_tokens_k": 1}, "prompt_alt_tokens_k is not supported"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [99_999]}, "99999"),
    ],
    ids=str,
)
async def test_parameters_that_cannot_be_followed_are_refused(client, fields, found):
    fields = dict(fields)
    sampler = await client.sampler()
    assert found in await client.failed("asample", client.sample_body(sampler, fields.pop("prompt", PROMPT), **fields))


async def test_only_the_newest_samplers_of_temporary_weights_are_kept(client, tmp_path):
    model_id = await client.model()
    made = [
        (await client.done("save_weights_for_sampler", {"model_id": model_id}))["sampling_session_id"]
        for _ in range(TEMPORARY_SAMPLERS + 2)
    ]
    assert len(list((tmp_path / "temporary").iterdir())) == TEMPORARY_SAMPLERS
    refused = await client.call("asample", client.sample_body(made[0]), status=404)
    assert "newer ones of temporary weights" in refused["detail"]
    await client.sample(made[2])


async def test_temporary_weights_of_a_session_that_ends_meanwhile_are_removed(client, tmp_path):
    model_id = await client.model()
    sampler = {"model_id": model_id, "sampling_session_seq_id": 7}
    for _ in range(2):
        await client.done("save_weights_for_sampler", sampler)
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    saving = await client.call("save_weights_for_sampler", {"model_id": model_id})
    await client.call(f"sessions/{client.session_id}/finish")
    assert "there is no session" in (await client.result(saving))["error"]
    await asyncio.wrap_future(client.service._thread.submit(lambda: None))
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_a_sample_can_be_cancelled_and_further_clients_can_join(client):
    sampler = await client.sampler()
    promise = await client.call("asample", client.sample_body(sampler, sampling_params={"max_tokens": 8000}))
    await client.call("cancel_future", {"request_id": promise["request_id"]})
    assert "cancelled" in (await client.result(promise))["error"]
    joined = [
        (await client.call("join_sampling_session", {"sampling_session_id": sampler}))["client_counter"]
        for _ in range(2)
    ]
    assert joined == [1, 2]
    assert (await client.sample(sampler))["sequences"]


async def test_a_sample_without_a_sampler_names_its_weights(client):
    found = await client.done(
        "asample",
        {
            "base_model": NAME,
            "prompt": {"chunks": []} | {"chunks": [{"tokens": PROMPT}]},
            "sampling_params": {"max_tokens": 2},
        },
    )
    assert 1 <= len(found["sequences"][0]["tokens"]) <= 2
    refused = await client.call("asample", {"prompt": {"chunks": []}, "sampling_params": {}}, status=400)
    assert "needs model_path or base_model" in refused["detail"]
