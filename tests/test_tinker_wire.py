"""Tinker's bodies as the genuine client library serializes them (tests/recordings/tinker.json: tinker 0.38.0), without
that library."""

import base64
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from areal_actors.core.errors import RequestError
from areal_actors.tinker import requests
from areal_actors.tinker.datums import (
    ForwardOutput,
    SampledTokenSequence,
    SampleOutput,
    TargetLogprobs,
    TopLogprobs,
    forward_of_json,
    forward_of_message,
    prompt_tokens,
)
from areal_actors.tinker.protobuf import WireMessage, blob, double_map, integer, pack_integers

RECORDED = json.loads((Path(__file__).parent / "recordings" / "tinker.json").read_text())
PASSES = {one["name"]: base64.b64decode(one["protobuf"]) for one in RECORDED["requests"] if "protobuf" in one}
KINDS = {
    "create_session": requests.CreateSession,
    "create_model": requests.CreateModel,
    "get_info": requests.OfModel,
    "optim_step": requests.OptimStep,
    "save_weights": requests.SaveWeights,
    "save_weights_for_sampler": requests.SaveWeights,
    "load_weights": requests.LoadWeights,
    "create_sampling_session": requests.CreateSamplingSession,
    "asample": requests.Sample,
    "retrieve_future": requests.RetrieveFuture,
}


def f32(*values):
    return np.array(values, dtype=np.float32)


def response(name):
    return base64.b64decode(RECORDED["responses"][name])


# ------------------------------------------------------------ requests


@pytest.mark.parametrize(
    "recorded", [one for one in RECORDED["requests"] if one["path"] in KINDS], ids=lambda one: one["path"]
)
def test_every_field_of_a_recorded_request_is_known(recorded):
    kind = KINDS[recorded["path"]]
    assert set(recorded["json"]) <= set(kind.__struct_fields__)
    read = requests.UnknownFields().read(json.dumps(recorded["json"]).encode(), kind)
    assert (
        msgspec.to_builtins(read).items()
        >= {key: value for key, value in recorded["json"].items() if not isinstance(value, dict)}.items()
    )


def test_nested_fields_are_read():
    by_path = {one["path"]: one.get("json") for one in RECORDED["requests"]}
    model = msgspec.convert(by_path["create_model"], requests.CreateModel)
    assert model.lora_config == requests.LoraRequest(rank=8, seed=3)
    step = msgspec.convert(by_path["optim_step"], requests.OptimStep)
    assert step.adam_params == requests.AdamParams(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8)
    sample = msgspec.convert(by_path["asample"], requests.Sample)
    assert prompt_tokens(sample.prompt).tolist() == [5, 6, 7, 8]
    assert sample.sampling_params == requests.SamplingRequestParams(
        max_tokens=6, seed=11, stop=["zz"], temperature=0.7, top_k=50, top_p=0.9
    )


def test_unknown_fields_are_accepted_and_logged_once(caplog):
    fields = requests.UnknownFields()
    for _ in range(2):
        assert fields.read(b'{"session_id": "s", "mood": 1}', requests.SessionHeartbeat).session_id == "s"
    assert [record.getMessage().count("mood") for record in caplog.records if "mood" in record.getMessage()] in (
        [],
        [1],
    )
    assert fields._seen == {("SessionHeartbeat", "mood")}


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"session_id": 3}'])
def test_a_body_that_is_no_request_is_refused(data):
    with pytest.raises(RequestError, match="no valid SessionHeartbeat"):
        requests.UnknownFields().read(data, requests.SessionHeartbeat)


def test_a_recorded_forward_pass_is_read():
    message = WireMessage(PASSES["cross_entropy"])
    assert (message.text(1)[-8:], message.number(2)) == (":train:0", 1)
    request = forward_of_message(message)
    assert (request.loss, request.loss_config, request.forward_only) == ("cross_entropy", {}, False)
    first, second = request.data
    assert first.token_ids.tolist() == [5, 6, 7, 8]
    assert {name: values.tolist() for name, values in first.inputs.items()} == {
        "target_tokens": [6, 7, 8, 9],
        "weights": [0, 1, 1, 0.5],
    }
    assert {name: values.tolist() for name, values in second.inputs.items()} == {
        "target_tokens": [8, 7, 6],
        "weights": [1, 0, 1],
    }


def test_a_recorded_sparse_tensor_becomes_dense():
    request = forward_of_message(WireMessage(PASSES["sparse"]))
    assert request.forward_only
    (datum,) = request.data
    assert datum.inputs["target_tokens"].tolist() == [[0, 3], [0, 0], [7, 0]]
    assert datum.inputs["weights"].tolist() == [[0, 0.25], [0, 0], [0.5, 0]]


def test_options_of_a_recorded_loss_are_read_and_provenance_is_ignored():
    request = forward_of_message(WireMessage(PASSES["ppo"]))
    assert (request.loss, request.loss_config) == ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1})
    (datum,) = request.data
    assert datum.inputs["logprobs"].tolist() == [0, 0, -1.5, -0.25]
    assert datum.inputs["advantages"].tolist() == [0, 0, 0.75, 0.75]


def test_json_and_protocol_buffers_give_the_same_request():
    tensors = {
        "target_tokens": {
            "data": [3, 7],
            "dtype": "int64",
            "shape": [3, 2],
            "sparse_crow_indices": [0, 1, 1, 2],
            "sparse_col_indices": [1, 0],
        },
        "weights": {"data": [0, 0.25, 0, 0, 0.5, 0], "dtype": "float32", "shape": [3, 2]},
    }
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": [4, 5, 6]}]}, "loss_fn_inputs": tensors}
    read = forward_of_json({"forward_input": {"data": [datum], "loss_fn": "cross_entropy"}}, forward_only=True)
    expected = forward_of_message(WireMessage(PASSES["sparse"]))
    assert (read.loss, read.loss_config, read.forward_only) == (
        expected.loss,
        expected.loss_config,
        expected.forward_only,
    )
    for name, values in expected.data[0].inputs.items():
        np.testing.assert_array_equal(read.data[0].inputs[name], values)
    np.testing.assert_array_equal(read.data[0].token_ids, expected.data[0].token_ids)


@pytest.mark.parametrize(
    ("datum", "found"),
    [
        ({"model_input": {"chunks": [{"type": "image", "data": ""}]}, "loss_fn_inputs": {}}, "takes tokens only"),
        (
            {"model_input": {"chunks": []}, "loss_fn_inputs": {"w": {"data": [1, 2], "dtype": "int64", "shape": [3]}}},
            "do not have the shape",
        ),
        (
            {"model_input": {"chunks": []}, "loss_fn_inputs": {"w": {"data": [1], "dtype": "bfloat16"}}},
            "type bfloat16 is not supported",
        ),
        ({"model_input": {"chunks": []}}, "lacks a field"),
        ({"model_input": {"text": "hello"}, "loss_fn_inputs": {}}, "no list of chunks"),
        ({"model_input": {"chunks": [{"tokens": ["a"]}]}, "loss_fn_inputs": {}}, "no list of chunks"),
        (
            {
                "model_input": {"chunks": []},
                "loss_fn_inputs": {
                    "w": {
                        "data": [1],
                        "dtype": "int64",
                        "shape": [1, 2],
                        "sparse_crow_indices": [0, 1],
                        "sparse_col_indices": [2],
                    }
                },
            },
            "sparse indices do not fit",
        ),
    ],
)
def test_data_that_cannot_be_used_is_refused(datum, found):
    with pytest.raises(RequestError, match=found):
        forward_of_json({"forward_backward_input": {"data": [datum], "loss_fn": "cross_entropy"}}, forward_only=False)


def test_chunks_that_are_no_text_are_refused_in_protocol_buffers_too():
    image = blob(3, blob(1, blob(2, blob(1, b"png"))))
    with pytest.raises(RequestError, match="holds an image"):
        forward_of_message(WireMessage(image))


def test_a_message_that_is_cut_short_is_refused_at_every_length():
    whole = PASSES["ppo"]
    outcomes = set()
    for length in range(len(whole)):
        try:
            forward_of_message(WireMessage(whole[:length]))
            outcomes.add("read")
        except RequestError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}  # a message may end between two fields


def test_numbers_of_all_sizes_survive():
    for value in (1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63)):
        assert WireMessage(integer(4, value)).number(4) == value
    assert WireMessage(pack_integers(1, [0, 1, 300, -2])).numbers(1) == [0, 1, 300, -2]
    assert WireMessage(integer(1, 5) + integer(1, 6)).numbers(1) == [5, 6]
    assert WireMessage(double_map(2, {"a": -0.5, "b": 1e300})).doubles(2) == {"a": -0.5, "b": 1e300}
    assert WireMessage(b"").number(9, default=3) == 3


# ------------------------------------------------------------ responses


def test_samples_are_written_as_the_genuine_library_writes_them():
    first = SampledTokenSequence(np.array([5, 6, 2], dtype=np.int32), f32(-0.5, -0.25, -0.125), "stop")
    top = TopLogprobs(np.array([[7, 8]], dtype=np.int32), f32(-2, -3)[None])
    second = SampledTokenSequence(np.array([7], dtype=np.int32), f32(-2), "length", top)
    output = SampleOutput([first, second], f32(np.nan, -1))
    assert output.to_protobuf() == response("sample")
    assert output.to_json() == {
        "type": "sample",
        "sequences": [
            {"stop_reason": "stop", "tokens": [5, 6, 2], "logprobs": [-0.5, -0.25, -0.125]},
            {"stop_reason": "length", "tokens": [7], "logprobs": [-2.0], "topk_logprobs": [[(7, -2.0), (8, -3.0)]]},
        ],
        "prompt_logprobs": [None, -1.0],
    }


def test_outputs_of_a_forward_pass_are_written_as_the_genuine_library_writes_them():
    outputs = [{"logprobs": f32(-1, -2)}, {"logprobs": f32(-3)}, {"logprobs": f32(-4, -5)[None]}]
    output = ForwardOutput(outputs, {"loss:sum": 6.5})
    assert output.to_protobuf() == response("forward")
    assert output.to_json()["loss_fn_outputs"][2] == {
        "logprobs": {"data": [-4.0, -5.0], "dtype": "float32", "shape": [1, 2]}
    }


def test_scores_of_named_tokens_are_written_in_the_layout_of_the_request():
    dense = TargetLogprobs(f32(-1, 0), (2, 1), None, None)
    (tensor,) = WireMessage(SampleOutput([], targets=dense).to_protobuf()).messages(5)
    assert (tensor.payload(1), tensor.number(3), tensor.numbers(4)) == (f32(-1, 0).tobytes(), 1, [2, 1])
    sparse = WireMessage(TargetLogprobs(f32(-3), (2, 2), (0, 0, 1), (1,)).to_protobuf())
    (indices,) = sparse.messages(2)
    assert [indices.payload(field) for field in (1, 2, 3)] == [
        f32(-3).tobytes(),
        np.array([0, 0, 1]).tobytes(),
        np.array([1]).tobytes(),
    ]
    assert SampleOutput([], targets=dense).to_json()["target_prompt_logprobs"] == {
        "data": [-1.0, 0.0],
        "dtype": "float32",
        "shape": [2, 1],
    }


def test_top_tokens_without_an_entry_are_null():
    top = TopLogprobs(np.zeros((2, 1), dtype=np.int32), f32(-99999.0, -1)[:, None])
    assert top.to_json() == [None, [(0, -1.0)]]
