"""Answers questions about a small encyclopedia that no model has read, by searching it with BM25."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_actors.client import LightClient

ARTICLES = Path(__file__).parent / "tasks" / "encyclopedia.txt"
TURNS = 6
INSTRUCTIONS = "Search the encyclopedia until you know the answer, then say it alone, after `Answer: `."
SEARCH = {
    "name": "search",
    "description": "The articles that fit these words best.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}


class SearchAgent:
    """One index for all episodes."""

    def __init__(self) -> None:
        self._index = Index(ARTICLES.read_text(encoding="utf-8").splitlines())

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Let the model search until it answers, and return the answer."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages: list[Any] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": task["question"]},
        ]
        tools: list[Any] = [{"type": "function", "function": SEARCH}]
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model="default", messages=messages, tools=tools)
            answer = completion.choices[0].message
            if not answer.tool_calls:
                return answer.content or ""
            messages.append(answer.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": self._search(call.function.arguments)}
                for call in answer.tool_calls
            ]
        return ""

    def _search(self, arguments: str) -> str:
        try:
            query = str(json.loads(arguments)["query"])
        except (ValueError, KeyError, TypeError):
            return 'error: write {"query": "..."}'
        return "\n".join(self._index.best(query, 3)) or "nothing found"


class Index:
    """Okapi BM25 over short texts."""

    def __init__(self, texts: Sequence[str], saturation: float = 1.5, length_weight: float = 0.75) -> None:
        self._texts = texts
        counts = [Counter(words(text)) for text in texts]
        mean_length = sum(map(Counter.total, counts)) / len(counts)
        frequency = Counter(word for count in counts for word in count)
        rarity = {word: math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for word, n in frequency.items()}
        self._weights = [
            {word: rarity[word] * n * (saturation + 1) / (n + saturation * norm) for word, n in count.items()}
            for count in counts
            for norm in [1 - length_weight + length_weight * count.total() / mean_length]
        ]

    def best(self, query: str, most: int) -> list[str]:
        """The texts with the highest scores, best first; texts that share no word with the query are left out."""
        asked = set(words(query))
        scores = [sum(weights.get(word, 0.0) for word in asked) for weights in self._weights]
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        return [self._texts[place] for place in order[:most] if scores[place] > 0]


def words(text: str) -> list[str]:
    """A text's words in lower case."""
    return re.findall(r"\w+", text.lower())


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 when what follows the last `Answer:` is the task's answer, whatever the case and punctuation, else 0."""
    _, marker, answer = output.rpartition("Answer:")
    return 1.0 if marker and words(answer) == words(task["answer"]) else 0.0
