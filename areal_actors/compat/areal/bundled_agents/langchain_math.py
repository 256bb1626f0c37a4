"""Agents of mathematics on LangChain: `areal.workflow.langchain.math_agent`."""

from __future__ import annotations

import importlib
from typing import Any

from areal_actors.compat.areal.bundled_agents.arithmetic_tools import CALCULATE, TOOLS, address, score, without


def _model(options: dict[str, Any], extra_kwargs: dict[str, Any]) -> Any:
    given = address(extra_kwargs, "OPENAI")
    connections = {"http_async_client": given.pop("http_client")}
    return importlib.import_module("langchain_openai").ChatOpenAI(model="default", **given, **connections, **options)


class LangChainMathAgent:
    """One answer, one reward; keyword arguments are those of `ChatOpenAI`. Needs `langchain-openai`."""

    def __init__(self, **options: Any) -> None:
        self.options = without(options, "max_tokens", "max_turns")

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer the row's messages."""
        answer = await _model(self.options, extra_kwargs).ainvoke(data["messages"])
        return await score(str(answer.content), data)


class LangChainMathToolAgent:
    """An agent with a calculator: a graph of the model and its tools. Needs `langgraph` and `langchain-openai`."""

    def __init__(self, max_turns: int = 8, **options: Any) -> None:
        self.max_turns = max_turns
        self.options = without(options, "max_tokens")

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer the row's messages; an agent that takes too many turns has no answer, and the reward 0."""
        errors = importlib.import_module("langgraph.errors")
        graph = self._graph(_model(self.options, extra_kwargs))
        messages = [{"role": "system", "content": CALCULATE}, *data["messages"]]
        try:
            result = await graph.ainvoke({"messages": messages}, config={"recursion_limit": 2 * self.max_turns + 1})
        except errors.GraphRecursionError:
            return 0.0
        return await score(str(result["messages"][-1].content), data)

    @staticmethod
    def _graph(model: Any) -> Any:
        graphs, prebuilt = (importlib.import_module(name) for name in ("langgraph.graph", "langgraph.prebuilt"))
        bound = model.bind_tools(list(TOOLS))

        async def ask(state: dict[str, Any]) -> dict[str, Any]:
            return {"messages": [await bound.ainvoke(state["messages"])]}

        graph = graphs.StateGraph(graphs.MessagesState)
        graph.add_node("model", ask)
        graph.add_node("tools", prebuilt.ToolNode(list(TOOLS)))
        graph.add_edge(graphs.START, "model")
        graph.add_conditional_edges("model", prebuilt.tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile()
