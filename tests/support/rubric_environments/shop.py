"""An environment with the interface of verifiers before 0.2: the model calls a tool, and answers with its result."""

import verifiers as vf
from datasets import Dataset

PRICES = {"apple": 3, "pear": 5}


def shop_price(item: str) -> str:
    """Price of an item in cents.

    Args:
        item: its name.
    """
    return str(PRICES[item])


def load_environment() -> vf.Environment:
    rows = [{"question": f"What does a(n) {item} cost?", "answer": str(price)} for item, price in PRICES.items()]

    def right(completion, answer, **_):
        return float(answer in completion[-1]["content"])

    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[shop_price], rubric=vf.Rubric(funcs=[right]), max_turns=4)
