"""A program of Tinker's genuine client library, for its own interpreter: learns arithmetic by reinforcement, and tries
the other calls.

Called as `python tinker_program.py MODEL TASKS STEPS`; prints one JSON object. `TASKS` is a file of lines with
`question` and `answer`.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import tinker
import torch
from tinker import types

GROUPS, MEMBERS, TOKENS = 16, 8, 64


def reward_of(text, task):
    """1 if the number after `####` is that of the task."""
    found = re.search(r"####\s*(-?\d+)", text)
    return float(found is not None and found[1] == task["answer"].rpartition("####")[2].strip())


def prompt_of(tokenizer, task):
    messages = [{"role": "user", "content": task["question"]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return types.ModelInput.from_ints(tokenizer.encode(text, add_special_tokens=False))


def datum_of(prompt, sequence, advantage):
    before = prompt.length - 1
    return types.Datum(
        model_input=prompt.append(types.EncodedTextChunk(tokens=sequence.tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": [0] * before + sequence.tokens,
            "logprobs": [0.0] * before + sequence.logprobs,
            "advantages": [0.0] * before + [advantage] * len(sequence.tokens),
        },
    )


def learn(training, tokenizer, tasks, steps):
    """Mean reward of each step."""
    rewards = []
    for step in range(steps):
        sampling = training.save_weights_and_get_sampling_client().result()
        chosen = [tasks[(step * GROUPS + number) % len(tasks)] for number in range(GROUPS)]
        prompts = [prompt_of(tokenizer, task) for task in chosen]
        futures = [sampling.sample(prompt, MEMBERS, types.SamplingParams(max_tokens=TOKENS)) for prompt in prompts]
        data, found = [], []
        for task, prompt, future in zip(chosen, prompts, futures, strict=True):
            sequences = future.result().sequences
            own = np.array([reward_of(tokenizer.decode(sequence.tokens), task) for sequence in sequences])
            found.append(own.mean())
            if own.std() > 0:
                scale = len(sequences) * GROUPS * TOKENS / 4
                advantages = (own - own.mean()) / own.std() / scale
                data += [
                    datum_of(prompt, sequence, float(advantage))
                    for sequence, advantage in zip(sequences, advantages, strict=True)
                ]
        rewards.append(float(np.mean(found)))
        if data:
            passed = training.forward_backward(data, "importance_sampling")
            stepped = training.optim_step(types.AdamParams(learning_rate=LR, beta1=0.9, beta2=0.99, eps=1e-8))
            passed.result()
            stepped.result()
    return rewards


LR = 4e-3


def try_calls(service, training, tokenizer, model):
    """Facts about the other calls, for the test to check."""
    found = {}
    prompt = types.ModelInput.from_ints(tokenizer.encode("Ana has 3 pens"))
    targets = [*prompt.to_ints()[1:], tokenizer.eos_token_id]
    datum = types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * len(targets)})

    state = training.save_state("state", ttl_seconds=3600, user_metadata={"a": "b"}).result().path
    again = service.create_training_client_from_state_with_optimizer(state).result()
    weights = service.create_training_client_from_state(state).result()
    own, *others = [client.forward([datum], "cross_entropy").result() for client in (training, again, weights)]
    found["restored"] = [
        float(
            np.abs(
                own.loss_fn_outputs[0]["logprobs"].to_numpy() - other.loss_fn_outputs[0]["logprobs"].to_numpy()
            ).max()
        )
        for other in others
    ]
    found["info"] = [again.get_info().lora_rank, again.get_info().model_data.model_name]

    path = training.save_weights_for_sampler("named").result().path
    sampler = service.create_sampling_client(model_path=path).result()
    scored = sampler.compute_logprobs(types.ModelInput.from_ints([*prompt.to_ints(), targets[-1]])).result()
    found["scored"] = float(np.abs(np.array(scored[1:]) - own.loss_fn_outputs[0]["logprobs"].to_numpy()).max())
    found["base_model"] = sampler.get_base_model()
    several = sampler.sample(
        prompt, 2, types.SamplingParams(max_tokens=5, seed=1), topk_sample_logprobs=2, include_prompt_logprobs=True
    ).result()
    found["sampled"] = [len(one.topk_logprobs) == len(one.tokens) for one in several.sequences]
    found["sequence_ids"] = len({one.sequence_id for one in several.sequences})
    base = service.create_sampling_client(base_model=model).result()
    found["base_tokens"] = len(
        base.sample(prompt, 1, types.SamplingParams(max_tokens=3, temperature=0.0)).result().sequences[0].tokens
    )

    def custom(data, logprobs):
        return sum((one**2).sum() for one in logprobs), {"mine": 1.0}

    result = weights.forward_backward_custom([datum], custom).result()
    weights.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    found["custom"] = [
        result.metrics["loss:sum"] - float((own.loss_fn_outputs[0]["logprobs"].to_numpy() ** 2).sum()),
        result.metrics["mine"],
    ]

    try:
        training.forward_backward([datum], "stable_reinforce").result()
    except tinker.RequestFailedError as error:
        found["refused"] = [str(error.category), str(error)]
    rest = tinker.RestClient()
    found["models"] = [one.model_name for one in rest.get_server_capabilities().result().supported_models]
    found["checkpoints"] = sorted(
        one.checkpoint_id for one in rest.list_checkpoints(training.model_id).result().checkpoints
    )
    found["weights_info"] = rest.get_weights_info_by_tinker_path(state).result().lora_rank
    rest.delete_checkpoint_from_tinker_path(state).result()
    found["left"] = [one.checkpoint_id for one in rest.list_checkpoints(training.model_id).result().checkpoints]
    return found


def main():
    model, tasks, steps = (
        sys.argv[1],
        [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()],
        int(sys.argv[3]),
    )
    torch.set_num_threads(1)
    with tinker.ServiceClient() as service:
        training = service.create_lora_training_client(base_model=model, rank=16, seed=0).result()
        tokenizer = training.get_tokenizer()
        rewards = learn(training, tokenizer, tasks, steps)
        found = try_calls(service, training, tokenizer, model)
    sys.stdout.write(json.dumps({"rewards": rewards, **found}) + "\n")


if __name__ == "__main__":
    main()
