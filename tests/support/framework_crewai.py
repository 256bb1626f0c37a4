"""CrewAI: a crew of one, with one tool."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("multiply")
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class CrewAi:
    def run(self, task, *, base_url, api_key):
        llm = LLM(model="openai/default", base_url=base_url, api_key=api_key)
        solver = Agent(
            role="mathematician", goal="Solve the problem.", backstory="You calculate.", tools=[multiply], llm=llm
        )
        work = Task(description=task["question"], expected_output="#### and the answer", agent=solver)
        return Crew(agents=[solver], tasks=[work], tracing=False).kickoff().raw
