"""Asks one question with Python's standard library alone: for containers and other places without packages."""

import json
import urllib.request
from typing import Any


class PlainAgent:
    """One call of the chat completions, whose answer is scored by the recipe's reward."""

    def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Ask the question and return the answer's text."""
        request = urllib.request.Request(  # noqa: S310 - the address of the gateway
            f"{base_url}/chat/completions",
            json.dumps({"model": "default", "messages": [{"role": "user", "content": task["question"]}]}).encode(),
            {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            content: str = json.load(answer)["choices"][0]["message"]["content"] or ""
        return content
