"""A verifiers environment with a tool; its settings make it fail in each of the ways in which one can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

__all__ = ["PriceLookupTaskset"]

PRICES = {"apple": 3, "pear": 5, "plum": 2}


class ShopToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "shop"

    @vf.tool
    def price(self, item: str) -> str:
        """The price of an item in cents."""
        return str(PRICES.get(item, "unknown"))


class PriceConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()
    fails: Literal["", "reward", "no reward", "setup"] = ""


class PriceData(vf.TaskData):
    price: int


class PriceTask(vf.Task[PriceData, vf.State, PriceConfig]):
    @classmethod
    def toolsets(cls, config: PriceConfig) -> list[vf.Toolset]:
        return [ShopToolset(config.tools)]

    async def setup(self) -> None:
        if self.config.fails == "setup":
            raise RuntimeError("the shop is closed")

    def hooks(self, attr):
        return [] if attr == "reward" and self.config.fails == "no reward" else super().hooks(attr)

    @vf.reward(weight=2.0)
    async def right_price(self, trace: vf.Trace) -> float:
        if self.config.fails == "reward":
            raise ZeroDivisionError("no price list")
        return float(str(self.data.price) in (trace.last_reply or ""))

    @vf.metric
    async def tool_results(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class PriceLookupConfig(vf.TasksetConfig):
    items: list[str] = list(PRICES)
    task: PriceConfig = PriceConfig()


class PriceLookupTaskset(vf.Taskset[PriceTask, PriceLookupConfig]):
    def load(self) -> Iterator[PriceTask]:
        for item in self.config.items:
            yield PriceTask(PriceData(prompt=f"What is the price of one {item}?", price=PRICES[item]), self.config.task)


if __name__ == "__main__":
    ShopToolset.run()
