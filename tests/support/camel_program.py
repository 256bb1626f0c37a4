"""The sample of AReaL's documentation with CAMEL's agent, with AReaL's imports."""

CAMEL_WORKFLOW = """
from areal.api.cli_args import GenerationHyperparameters
from areal.api.reward_api import AsyncRewardWrapper
from areal.api.workflow_api import RolloutWorkflow
from areal.experimental.camel.openai_model import AReaLOpenAICompatibleModel
from areal.experimental.openai import ArealOpenAI
from areal.utils import stats_tracker
from camel.agents import ChatAgent

def math_reward_fn(result, answer):
    return float(result.strip() == answer.strip())

class CamelMathAgent:
    def __init__(self, tokenizer, max_total_tokens=32768):
        self.tokenizer = tokenizer
        self.max_total_tokens = max_total_tokens
        self.async_reward_fn = AsyncRewardWrapper(math_reward_fn)

    async def run_agent(self, data, client: ArealOpenAI):
        model = AReaLOpenAICompatibleModel(openai_client=client, tokenizer=self.tokenizer, model_type="areal")
        system_message = "You are a helpful math assistant."
        agent = ChatAgent(system_message=system_message, model=model, token_limit=self.max_total_tokens)
        response = await agent.astep(data["messages"][-1]["content"])
        reward = await self.async_reward_fn(result=response.msg.content, answer=data["answer"])
        client.set_last_reward(reward)
        return reward

class CamelRLVRWorkflow(RolloutWorkflow):
    def __init__(self, gconfig=None, tokenizer=None):
        self.gconfig = gconfig or GenerationHyperparameters(n_samples=1, max_new_tokens=20)
        self.tokenizer = tokenizer or LettersTokenizer()
        self.agent = CamelMathAgent(tokenizer=self.tokenizer)

    async def arun_episode(self, engine, data):
        client = ArealOpenAI(engine=engine, tokenizer=self.tokenizer)
        reward = await self.agent.run_agent(data=data, client=client)
        stats_tracker.get("rollout").scalar(reward=reward)
        client.apply_reward_discount(turn_discount=0.9)
        return client.export_interactions(style="individual")

class LettersTokenizer:
    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()
"""
