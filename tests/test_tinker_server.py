"""The protocol of `areal-actors serve tinker`, with requests as the genuine client library serializes them."""

import asyncio

import numpy as np
import pytest
from support.tinker_harness import NAME, PROTOBUF, RECORDED_SESSION, datum, recorded, recorded_pass, serving
from support.tiny_trainer import write_model

from areal_actors.tinker import server

DATA = [datum([5, 6, 7, 8], [6, 7, 8, 9], weights=[0, 1, 1, 0.5]), datum([9, 8, 7], [8, 7, 6], weights=[1, 0, 1])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def client(folder, tmp_path):
    async with serving(folder, tmp_path / "state", tmp_path / "temporary") as harness:
        yield harness


def of_session(client, message):
    return message.replace(RECORDED_SESSION.encode(), client.session_id.encode())


async def test_recorded_requests_of_a_whole_session_are_served(client, folder):
    assert (await client.call("client/config", recorded("client/config")))["use_pyqwest_transport"] is False
    model_id = await client.model()
    info = await client.call("get_info", recorded("get_info", model_id=model_id))
    assert (info["model_data"]["model_name"], info["is_lora"], info["lora_rank"]) == (NAME, True, 8)
    assert info["model_data"]["tokenizer_id"] == folder
    passed = await client.done("forward_backward", data=of_session(client, recorded_pass("cross_entropy")))
    assert [len(one["logprobs"]["data"]) for one in passed["loss_fn_outputs"]] == [4, 3]
    losses = np.concatenate([one["elementwise_loss"]["data"] for one in passed["loss_fn_outputs"]])
    assert passed["metrics"] == {"loss:sum": pytest.approx(float(losses.sum()), rel=1e-5)}
    stepped = await client.done("optim_step", recorded("optim_step", model_id=model_id))
    assert stepped["metrics"]["grad_norm"] > 0
    saved = await client.done("save_weights", recorded("save_weights", model_id=model_id))
    assert saved == {"path": f"tinker://{model_id}/weights/000020", "type": "save_weights"}
    sampler = await client.done("save_weights_for_sampler", recorded("save_weights_for_sampler", model_id=model_id))
    assert sampler["path"] == f"tinker://{model_id}/sampler_weights/final"
    temporary = {"model_id": model_id, "seq_id": 5, "sampling_session_seq_id": 0, "kind": "snapshot"}
    made = await client.done("save_weights_for_sampler", temporary)
    assert (made["path"], made["sampling_session_id"]) == (None, f"{client.session_id}:sample:0")
    loaded = await client.done(
        "load_weights", recorded("load_weights", session_id=client.session_id, path=saved["path"])
    )
    assert (loaded["model_id"], loaded["path"]) == (f"{client.session_id}:train:1", saved["path"])
    body = recorded("create_sampling_session", session_id=client.session_id, model_path=sampler["path"])
    sampler_id = (await client.call("create_sampling_session", body))["sampling_session_id"]
    promise = await client.call("asample", recorded("asample", sampling_session_id=sampler_id))
    assert len(set(promise["sample_sequence_ids"])) == 2
    sampled = await client.result(promise)
    assert len(sampled["sequences"]) == 2
    for sequence in sampled["sequences"]:
        assert len(sequence["tokens"]) == len(sequence["logprobs"]) == len(sequence["topk_logprobs"]) <= 6
    assert [value is None for value in sampled["prompt_logprobs"]] == [True, True, False, False]
    assert [row is None for row in sampled["topk_prompt_logprobs"]] == [True, True, False, False]


async def test_results_are_protocol_buffers_for_clients_that_accept_them(client):
    model_id = await client.model()
    promise = await client.call("forward_backward", data=of_session(client, recorded_pass("sparse")))
    await client.result(promise)
    body, accepts = {"request_id": promise["request_id"]}, {"Accept": PROTOBUF}
    async with client.http.post(f"{client.root}/api/v1/retrieve_future", json=body, headers=accepts) as answer:
        assert answer.content_type == PROTOBUF
        assert (await answer.read()).startswith(b"\x0a\x0bArrayRecord")
    with pytest.raises(AssertionError, match="no gradient"):
        await client.done(
            "optim_step", {"model_id": model_id, "adam_params": {}}
        )  # the recorded pass is a forward pass only


async def test_requests_of_a_model_run_in_order_of_their_numbers(client):
    model_id = await client.model()
    step = await client.call("optim_step", {"model_id": model_id, "seq_id": 3, "adam_params": {"learning_rate": 0.0}})
    forward = {"data": DATA, "loss_fn": "cross_entropy"}
    late = await client.call("forward_backward", {"model_id": model_id, "seq_id": 2, "forward_backward_input": forward})
    first = await client.call(
        "forward_backward", {"model_id": model_id, "seq_id": 1, "forward_backward_input": forward}
    )
    again = await client.call(
        "forward_backward", {"model_id": model_id, "seq_id": 1, "forward_backward_input": forward}
    )
    assert first == again
    losses = [(await client.result(promise))["metrics"]["loss:sum"] for promise in (first, late)]
    norm = (await client.result(step))["metrics"]["grad_norm"]
    assert losses[0] == losses[1]
    single = (await client.train(model_id, DATA, seq_id=4, lr=0.0))[1]["metrics"]["grad_norm"]
    assert norm == pytest.approx(2 * single, rel=1e-4)  # both passes, and not the retried one


async def test_a_failed_request_is_a_result_and_the_next_one_runs(client):
    model_id = await client.model()
    bad = {"model_id": model_id, "seq_id": 1, "forward_backward_input": {"data": DATA, "loss_fn": "stable_reinforce"}}
    assert "formula is not published" in await client.failed("forward_backward", bad)
    assert "no gradient" in await client.failed("optim_step", {"model_id": model_id, "seq_id": 2, "adam_params": {}})
    image = {"model_input": {"chunks": [{"type": "image"}]}, "loss_fn_inputs": {}}
    body = {"model_id": model_id, "seq_id": 3, "forward_backward_input": {"data": [image], "loss_fn": "cross_entropy"}}
    assert "takes tokens only" in await client.failed("forward_backward", body)
    forward, step = await client.train(model_id, DATA, seq_id=4)
    assert forward["metrics"]["loss:sum"] > 0
    assert step["metrics"]["grad_norm"] > 0


async def test_what_cannot_be_accepted_is_refused_with_its_reason(client):
    unknown = {"model_id": f"{client.session_id}:train:9", "adam_params": {}}
    assert "there is no model" in (await client.call("optim_step", unknown, status=404))["detail"]
    base = recorded("create_model", session_id=client.session_id, base_model="other")
    assert "'other' is not served here" in (await client.call("create_model", base, status=400))["detail"]
    optimizer = recorded(
        "create_model", session_id=client.session_id, base_model=NAME, optimizer_config={"type": "dimuon"}
    )
    assert "dimuon" in (await client.call("create_model", optimizer, status=400))["detail"]
    path = recorded("load_weights", session_id=client.session_id)
    assert "there is no checkpoint" in (await client.call("load_weights", path, status=404))["detail"]
    assert "docs/tinker.md" in (await client.call("create_custom_loss", {}, status=404))["detail"]
    assert "session" in (await client.call("session_heartbeat", {"session_id": "ended"}, status=410))["detail"]
    assert "no request" in (await client.call("retrieve_future", {"request_id": "never"}, status=404))["detail"]
    async with client.http.post(
        f"{client.root}/api/v1/telemetry", data=b"x", headers={"Content-Encoding": "zstd"}
    ) as answer:
        assert answer.status == 415


async def test_a_result_that_takes_long_is_asked_for_again(client, monkeypatch):
    monkeypatch.setattr(server, "POLL_SECONDS", 0.0)
    model_id = await client.model()
    assert (await client.train(model_id, DATA))[0]["metrics"]["loss:sum"] > 0


async def test_a_session_that_has_finished_has_no_models_and_no_temporary_weights(client, tmp_path):
    model_id = await client.model()
    made = await client.done("save_weights_for_sampler", {"model_id": model_id})
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    found = await client.get(f"sessions/{client.session_id}")
    assert (found["training_run_ids"], found["sampler_ids"]) == ([model_id], [made["sampling_session_id"]])
    await client.call(f"sessions/{client.session_id}/finish", {"reason": {"type": "success"}})
    assert list((tmp_path / "temporary").iterdir()) == []
    await client.call("get_info", {"model_id": model_id}, status=404)
    await client.call("session_heartbeat", {"session_id": client.session_id}, status=410)


async def test_clients_one_after_another_and_at_the_same_time(client):
    first = await client.model()
    before = client.session_id
    await client.begin()
    second = await client.model()
    assert first != second
    both = await asyncio.gather(client.train(first, DATA), client.train(second, DATA))
    assert both[0] == both[1]
    await client.call(f"sessions/{before}/finish")
    assert (await client.train(second, DATA))[1]["metrics"]["grad_norm"] > 0


async def test_an_unloaded_model_is_gone(client):
    model_id = await client.model()
    assert await client.done("unload_model", {"model_id": model_id}) == {"model_id": model_id, "type": "unload_model"}
    await client.call("get_info", {"model_id": model_id}, status=404)


async def test_checkpoints_are_listed_described_and_deleted(client):
    model_id = await client.model(user_metadata={"renderer_name": "qwen3"})
    saved = await client.done(
        "save_weights", {"model_id": model_id, "path": "a", "ttl_seconds": 3600, "user_metadata": {"x": "y"}}
    )
    await client.done("save_weights_for_sampler", {"model_id": model_id, "path": "b"})
    assert "exists already" in await client.failed("save_weights", {"model_id": model_id, "path": "a"})
    await client.done("save_weights", {"model_id": model_id, "path": "a", "overwrite": True})
    listed = await client.get(f"training_runs/{model_id}/checkpoints")
    assert {one["checkpoint_id"]: one["checkpoint_type"] for one in listed["checkpoints"]} == {
        "weights/a": "training",
        "sampler_weights/b": "sampler",
    }
    assert (await client.get("checkpoints?limit=1&offset=1"))["cursor"] == {"offset": 1, "limit": 1, "total_count": 2}
    for number in ("9" * 30, "9" * 5000, "-1", "x"):
        assert "offset: found" in str(await client.get(f"checkpoints?offset={number}", status=400))
    run = await client.get(f"training_runs/{model_id}")
    assert (run["base_model"], run["user_metadata"], run["last_checkpoint"]["tinker_path"]) == (
        NAME,
        {"renderer_name": "qwen3"},
        saved["path"],
    )
    assert [one["training_run_id"] for one in (await client.get("training_runs"))["training_runs"]] == [model_id]
    info = await client.call("weights_info", {"tinker_path": saved["path"]})
    assert (info["base_model"], info["is_lora"], info["lora_rank"], info["train_mlp"]) == (NAME, True, 8, True)
    await client.call(f"training_runs/{model_id}/checkpoints/weights/a", method="DELETE")
    await client.call("weights_info", {"tinker_path": saved["path"]}, status=404)


def spoil(folder, pattern):
    """Flip a bit of a file."""
    (path,) = folder.glob(pattern)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "trainer_state.pt", "config.json", "tokenizer.json", "tinker.json", "manifest.json"]
)
async def test_a_checkpoint_with_a_flipped_bit_is_loaded_by_no_call(client, tmp_path, file):
    model_id = await client.model()
    path = (await client.done("save_weights", {"model_id": model_id, "path": "a"}))["path"]
    spoil(tmp_path / "state", f"checkpoints/*/weights/a/{file}")
    load = {"path": path, "optimizer": True}
    if file in ("tinker.json", "manifest.json"):
        answers = [
            await client.call("load_weights", load | {"model_id": model_id}, status=400),
            await client.call("load_weights", load | {"session_id": client.session_id, "model_seq_id": 5}, status=400),
        ]
        reasons = [answer["detail"] for answer in answers]
    else:
        reasons = [
            await client.failed("load_weights", load | {"model_id": model_id}),
            await client.failed("load_weights", load | {"session_id": client.session_id, "model_seq_id": 5}),
        ]
    sampler = {"session_id": client.session_id, "sampling_session_seq_id": 9, "model_path": path}
    reasons.append((await client.call("create_sampling_session", sampler, status=400))["detail"])
    assert all(file in reason for reason in reasons), reasons
    await client.done("save_weights", {"model_id": model_id, "path": "a", "overwrite": True})
    await client.done("load_weights", load | {"model_id": model_id})


async def test_a_checkpoint_that_an_earlier_request_replaces_is_loaded_as_it_is_then(client):
    model_id = await client.model()
    save = {"model_id": model_id, "path": "a", "overwrite": True}
    path = (await client.done("save_weights", save))["path"]
    sampler = await client.sampler(1, model_path=path)
    replaced = await client.call("save_weights", save)
    load = await client.call("load_weights", {"model_id": model_id, "path": path, "optimizer": True})
    assert "error" not in await client.result(replaced)
    assert "error" not in await client.result(load)
    refused = await client.failed("asample", client.sample_body(sampler))
    assert refused == f"{path} was overwritten or deleted: create another sampler"


@pytest.mark.parametrize("lora", [True, False], ids=["adapter", "full"])
async def test_a_model_made_from_a_checkpoint_continues_as_the_saved_one(client, lora):
    model_id = await client.model(lora=lora)
    await client.train(model_id, DATA)
    saved = await client.done("save_weights", {"model_id": model_id, "path": "a"})
    expected = await client.train(model_id, DATA)
    expected += await client.train(model_id, DATA)
    for number, optimizer in ((7, True), (8, False)):
        body = {"session_id": client.session_id, "model_seq_id": number, "path": saved["path"], "optimizer": optimizer}
        other = (await client.done("load_weights", body))["model_id"]
        info = await client.call("get_info", {"model_id": other})
        assert info["is_lora"] == lora
        found = await client.train(other, DATA, seq_id=1)
        assert found == expected[:2]
        found = await client.train(other, DATA, seq_id=3)
        assert (found == expected[2:]) == optimizer
    await client.done("load_weights", {"model_id": model_id, "path": saved["path"], "optimizer": True})
    assert await client.train(model_id, DATA) == expected[:2]


async def test_the_server_lists_its_model_by_each_name(client, folder):
    found = (await client.get("get_server_capabilities"))["supported_models"]
    assert [one["model_name"] for one in found] == [NAME, folder]
    assert all(one["trainable"] and one["sampleable"] and one["max_context_length"] == 8192 for one in found)
    assert (await client.get("healthz")) == {"status": "ok"}
    assert (await client.call("telemetry", {"events": []})) == {"status": "accepted"}
    assert client.session_id in (await client.get("sessions"))["sessions"]
