"""Generation engines that are servers of their own: SGLang and vLLM, over HTTP."""
