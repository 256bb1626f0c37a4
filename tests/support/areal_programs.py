"""Programs in the shape of AReaL's documentation, with AReaL's imports; and what tests need to run their agents
here."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from support.gateway_harness import opened_gateway
from support.samples import work

from areal_actors.messages import EpisodeScored, TrajectoryExported

INLINE_AGENT = """
import os
from openai import AsyncOpenAI

class MyAgent:
    async def run(self, data, **extra_kwargs):
        http_client = extra_kwargs.get("http_client")
        base_url = extra_kwargs.get("base_url") or os.getenv("OPENAI_BASE_URL")
        client = AsyncOpenAI(base_url=base_url, api_key="DUMMY", http_client=http_client, max_retries=0)
        response = await client.chat.completions.create(model="default", messages=data["messages"])
        return 1.0 if response.choices[0].message.content == data["answer"] else 0.0
"""

SUBPROCESS_AGENT = """
import os
from openai import OpenAI

class MySyncAgent:
    async def run(self, data, **extra_kwargs):
        client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL"), api_key="DUMMY")
        response = client.chat.completions.create(model="default", messages=data["messages"])
        return float(response.choices[0].message.content == data["answer"])
"""

FUNCTION = """
from openai import AsyncOpenAI
from areal.api.cli_args import GenerationHyperparameters
from areal.utils import logging
from areal.utils.proxy_utils import run_and_submit_rewards

logger = logging.getLogger("Agent")

async def run_agent_return_reward(data: dict) -> float:
    arguments = GenerationHyperparameters(**data.get("gconfig", {})).to_openai_args_dict(api_format="completions")
    async with AsyncOpenAI() as client:
        completion = await client.chat.completions.create(messages=data["messages"], model="default", **arguments)
    return float(completion.choices[0].message.content == data["answer"])

async def run_agent_return_rewards(data: dict) -> dict[str, float]:
    messages, rewards = data["messages"].copy(), {}
    async with AsyncOpenAI() as client:
        for turn in range(2):
            response = await client.chat.completions.create(messages=messages, model="default")
            messages.append(response.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": "again"})
            rewards[response.id] = float(turn)
    return rewards

async def run_and_submit(data: dict):
    await run_and_submit_rewards(func=run_agent_return_rewards, data=data)
"""

TENSOR_WORKFLOW = """
import uuid
import torch
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest
from areal.api.workflow_api import RolloutWorkflow
from areal.infra import workflow_context
from areal.utils import stats_tracker

class MyWorkflow(RolloutWorkflow):
    def __init__(self, tokenizer, gconfig=None, **kwargs):
        self.tokenizer = tokenizer
        gconfig = gconfig or GenerationHyperparameters(max_new_tokens=20)
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)

    async def arun_episode(self, engine, data):
        input_ids = self.tokenizer.encode(data["prompt"])
        req = ModelRequest(rid=uuid.uuid4().hex, input_ids=input_ids, gconfig=self.gconfig, tokenizer=self.tokenizer)
        resp = await engine.agenerate(req)
        reward = data.get("reward", 1.0)
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        if reward < 0:
            return None
        return self.build_tensor_dict(resp, reward)

    def build_tensor_dict(self, resp, reward):
        prompt, answer = resp.input_len, resp.output_len
        return {
            "input_ids": torch.tensor([resp.input_tokens + resp.output_tokens], dtype=torch.int32),
            "attention_mask": torch.ones(1, prompt + answer, dtype=torch.bool),
            "loss_mask": torch.tensor([[0] * prompt + [1] * answer], dtype=torch.int32),
            "logprobs": torch.tensor([[0.0] * prompt + resp.output_logprobs], dtype=torch.float32),
            "rewards": torch.tensor([reward], dtype=torch.float32),
            "versions": torch.tensor([[-1] * prompt + resp.output_versions], dtype=torch.int32),
        }
"""

CLIENT_WORKFLOW = """
from areal.api.workflow_api import RolloutWorkflow
from areal.experimental.openai import ArealOpenAI

class MyWorkflow(RolloutWorkflow):
    def __init__(self, tokenizer, style="individual"):
        self.tokenizer = tokenizer
        self.style = style

    async def arun_episode(self, engine, data):
        client = ArealOpenAI(engine=engine, tokenizer=self.tokenizer)
        response = await client.chat.completions.create(model="default", messages=data["messages"])
        client.set_last_reward(float(response.choices[0].message.content == data["answer"]))
        client.apply_reward_discount(turn_discount=0.9)
        return client.export_interactions(style=self.style)
"""

MULTI_TURN_WORKFLOW = """
from areal import workflow_context
from areal.api import AsyncRewardWrapper, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.experimental.openai import ArealOpenAI
from areal.utils import stats_tracker

def reward_fn(result, answer):
    return float(result == answer)

class MultiturnWorkflow(RolloutWorkflow):
    def __init__(self, tokenizer, gconfig=None, export_style="concat", max_turns=2):
        self.tokenizer = tokenizer
        self.export_style = export_style
        self.chat_template_type = "concat" if export_style == "concat" else "hf"
        self.gconfig = (gconfig or GenerationHyperparameters(max_new_tokens=20)).new(n_samples=1)
        self.max_turns = max_turns
        self.async_reward_fn = AsyncRewardWrapper(reward_fn, timeout_seconds=120)

    async def arun_episode(self, engine, data):
        client = ArealOpenAI(engine=engine, tokenizer=self.tokenizer, chat_template_type=self.chat_template_type)
        messages = data["messages"].copy()
        for _ in range(self.max_turns):
            response = await client.chat.completions.create(messages=messages, **self.gconfig.to_openai_args_dict())
            message = response.choices[0].message
            messages.append(message)
            reward = await self.async_reward_fn(result=message.content, answer=data["answer"])
            client.set_reward(response.id, reward)
            if reward == 1:
                break
            messages.append({"role": "user", "content": "Wrong. Try again."})
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        client.apply_reward_discount(turn_discount=0.9)
        return client.export_interactions(style=self.export_style)
"""

TRAIN = """
import sys

from areal import PPOTrainer
from areal.api.cli_args import GRPOConfig, load_expr_config
from areal.dataset import get_custom_dataset
from areal.utils.hf_utils import load_hf_tokenizer


def main(args):
    config, _ = load_expr_config(args, GRPOConfig)
    tokenizer = load_hf_tokenizer(config.tokenizer_path)
    train_dataset = get_custom_dataset(split="train", dataset_config=config.train_dataset, tokenizer=tokenizer)
    valid_dataset = get_custom_dataset(split="test", dataset_config=config.valid_dataset, tokenizer=tokenizer)
    workflow_kwargs = dict(
        reward_fn="areal.reward.gsm8k.gsm8k_reward_fn",
        gconfig=config.gconfig,
        tokenizer=config.tokenizer_path,
        enable_thinking=False,
    )
    eval_workflow_kwargs = workflow_kwargs.copy()
    eval_workflow_kwargs["gconfig"] = config.gconfig.new(temperature=0.6)
    with PPOTrainer(config, train_dataset=train_dataset, valid_dataset=valid_dataset) as trainer:
        trainer.train(
            workflow="areal.workflow.rlvr.RLVRWorkflow",
            workflow_kwargs=workflow_kwargs,
            eval_workflow="areal.workflow.rlvr.RLVRWorkflow",
            eval_workflow_kwargs=eval_workflow_kwargs,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
"""

TRAIN_AGENT = """
import sys

from areal import PPOTrainer
from areal.api.cli_args import GRPOConfig, load_expr_config
from areal.dataset import get_custom_dataset
from areal.utils.hf_utils import load_hf_tokenizer


def main(args):
    config, _ = load_expr_config(args, GRPOConfig)
    tokenizer = load_hf_tokenizer(config.tokenizer_path)
    train_dataset = get_custom_dataset(split="train", dataset_config=config.train_dataset, tokenizer=tokenizer)
    with PPOTrainer(config, train_dataset=train_dataset) as trainer:
        trainer.train(workflow="my_agent.MathAgent")


if __name__ == "__main__":
    main(sys.argv[1:])
"""

MATH_AGENT = """
import os
from openai import AsyncOpenAI
from areal.api import AsyncRewardWrapper

def math_reward_fn(completions, answer):
    return float(completions.strip().endswith(answer.rpartition("#### ")[2]))

class MathAgent:
    async def run(self, data, **extra_kwargs):
        http_client = extra_kwargs.get("http_client", None)
        base_url = extra_kwargs.get("base_url", None) or os.getenv("OPENAI_BASE_URL")
        api_key = extra_kwargs.get("api_key", None) or os.getenv("OPENAI_API_KEY")
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        response = await client.chat.completions.create(model="default", messages=data["messages"])
        reward_fn = AsyncRewardWrapper(math_reward_fn, timeout_seconds=120)
        return await reward_fn(completions=response.choices[0].message.content, answer=data["answer"])
"""

CONFIG = """
experiment_name: gsm8k-grpo
trial_name: trial0
seed: 1
enable_offload: false
total_train_epochs: 1
total_train_steps: 2
tokenizer_path: ${actor.path}
cluster:
  n_nodes: 1
  n_gpus_per_node: 8
  fileroot: %(folder)s
  name_resolve:
    type: nfs
    nfs_record_root: /nowhere/name_resolve
scheduler:
  type: null
rollout:
  backend: "sglang:d4p1t1"
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  max_concurrent_rollouts: 16
  queue_size: null
  consumer_batch_size: ${train_dataset.batch_size}
  max_head_offpolicyness: 2
  enable_rollout_tracing: false
  scheduling_spec: ${actor.scheduling_spec}
  fileroot: ${cluster.fileroot}
  tokenizer_path: ${tokenizer_path}
  dump_to_file: false
gconfig:
  n_samples: 4
  min_new_tokens: 0
  max_new_tokens: 64
  greedy: false
  temperature: 1.0
actor:
  backend: "fsdp:d4p1t1"
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  path: %(model)s
  init_from_scratch: false
  disable_dropout: true
  gradient_checkpointing: false
  dtype: float32
  mb_spec:
    max_tokens_per_mb: 10240
    packing_algorithm: ffd
  optimizer:
    type: adam
    lr: 1.70e-4
    weight_decay: 0.017
    beta1: 0.9
    beta2: 0.999
    eps: 1e-8
    lr_scheduler_type: constant
    gradient_clipping: 1.0
    warmup_steps_proportion: 0.001
  eps_clip: 0.4
  temperature: ${gconfig.temperature}
  reward_scaling: 10.0
  reward_bias: -0.5
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  recompute_logprob: true
  use_decoupled_loss: true
  rejection_sampling:
    metric: ratio
    upper: 5.0
  reward_norm:
    mean_level: group
    std_level: group
    group_size: ${gconfig.n_samples}
  adv_norm:
    mean_level: batch
    std_level: batch
  weight_update_mode: xccl
  max_new_tokens: ${gconfig.max_new_tokens}
  scheduling_spec:
    - task_type: worker
      gpu: 1
sglang:
  model_path: ${actor.path}
  context_length: 256
  mem_fraction_static: 0.8
train_dataset:
  batch_size: 4
  shuffle: true
  pin_memory: true
  num_workers: 4
  path: %(dataset)s
  type: rl
  max_length: 1024
valid_dataset:
  batch_size: 4
  path: %(dataset)s
  type: rl
saver:
  experiment_name: ${experiment_name}
  freq_epochs: 1
  freq_steps: null
evaluator:
  freq_steps: 2
recover:
  mode: disabled
stats_logger:
  wandb:
    mode: disabled
perf_tracer:
  enabled: false
"""


class LettersTokenizer:
    """The part of a Hugging Face tokenizer that workflows use; a token is a byte, and a newline ends a message."""

    eos_token_id = pad_token_id = ord("\n")

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()

    def apply_chat_template(self, messages, **_):
        return {
            "input_ids": self.encode(
                "".join(f"{message['role'][0]}:{message['content']}\n" for message in messages) + "a:"
            )
        }


@asynccontextmanager
async def episode(engine):
    """A gateway with a session, the session, and a function that scores it and returns its trajectory."""
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", engine)
        opened = await harness.open()

        async def trajectory(result):
            exported = harness.until(TrajectoryExported)
            scored = EpisodeScored(work=work(), session=opened.session, reward=result.reward, rewards=result.rewards)
            await harness.publish(scored)
            async with asyncio.timeout(300):
                return (await exported).trajectory

        yield harness, opened, trajectory
