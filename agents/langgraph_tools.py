"""Solves a maths problem with LangGraph: a graph of two nodes, the model and its tools."""

import re
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

INSTRUCTIONS = "Solve the problem, with the tools where they help. End with `#### ` and the answer."


@tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression of numbers, + - * / and brackets."""
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        return "error: write numbers, + - * / and brackets only"
    try:
        return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name
    except (ArithmeticError, SyntaxError, TypeError) as error:
        return f"error: {error}"


class LangGraphAgent:
    """The graph is made for each episode, around a model at the episode's own address; the connections are shared."""

    def __init__(self) -> None:
        self._connections = {"http_client": DefaultHttpxClient(), "http_async_client": DefaultAsyncHttpxClient()}

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Run the graph and return the last message.

        A conversation over the recursion limit becomes an empty answer.
        """
        tools = [calculate]
        model = ChatOpenAI(
            model="default", base_url=base_url, api_key=api_key, max_retries=0, **self._connections
        ).bind_tools(tools)

        async def answer(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", answer)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        conversation = {"messages": [("system", INSTRUCTIONS), ("user", task["question"])]}
        try:
            final = await graph.compile().ainvoke(conversation, {"recursion_limit": 12})
        except GraphRecursionError:
            return ""
        return str(final["messages"][-1].text)
