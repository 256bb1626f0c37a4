"""The agents that come with AReaL, by its names: mathematics with the OpenAI, Anthropic, LangChain and Agents SDKs."""
