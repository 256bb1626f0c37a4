// LangChain's chat models over each of the three protocols.

import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { baseUrl, description, key, multiply, name, note, over, parameters, report, turns } from "./common.mjs";

const shared = { model: "default", apiKey: key, maxRetries: 0 };
const thinking = { type: "enabled", budget_tokens: 1024 };
const models = {
  chat: () => new ChatOpenAI({ ...shared, configuration: { baseURL: baseUrl } }),
  responses: () => new ChatOpenAI({ ...shared, model: "gpt-5", configuration: { baseURL: baseUrl }, reasoning: { summary: "auto" }, useResponsesApi: true }),
  messages: () => new ChatAnthropic({ ...shared, anthropicApiUrl: baseUrl.replace(/\/v1$/, ""), maxTokens: 2048, thinking }),
};
const multiplication = tool(multiply, { name, description, schema: parameters });
const model = models[over]().bindTools([multiplication]);
const messages = [];

async function invoke(stream) {
  if (!stream) return model.invoke(messages);
  let whole;
  for await (const chunk of await model.stream(messages)) whole = whole ? whole.concat(chunk) : chunk;
  return whole;
}

for (const { question, stream } of turns) {
  messages.push(new HumanMessage(question));
  for (let calls = [null]; calls.length; ) {
    const answer = await invoke(stream);
    messages.push(answer);
    calls = answer.tool_calls;
    const blocks = answer.contentBlocks.filter((block) => block.type === "reasoning").map((block) => block.reasoning);
    const reasoning = blocks.join("") || answer.additional_kwargs.reasoning_content;
    note(answer.text, reasoning, calls.map((call) => [call.name, call.args]));
    for (const call of calls) messages.push(await multiplication.invoke(call));
  }
}
report();
