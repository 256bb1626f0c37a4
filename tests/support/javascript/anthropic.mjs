// The Anthropic SDK, with thinking.

import Anthropic from "@anthropic-ai/sdk";
import { baseUrl, description, key, multiply, name, note, parameters, report, turns } from "./common.mjs";

const client = new Anthropic({ baseURL: baseUrl.replace(/\/v1$/, ""), apiKey: key, maxRetries: 0 });
const messages = [];

for (const { question, stream } of turns) {
  messages.push({ role: "user", content: question });
  for (let calls = [null]; calls.length; ) {
    const request = {
      model: "default",
      max_tokens: 2048,
      thinking: { type: "enabled", budget_tokens: 1024 },
      messages,
      tools: [{ name, description, input_schema: parameters }],
    };
    const message = stream ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
    messages.push({ role: "assistant", content: message.content });
    const joined = (type) => message.content.filter((block) => block.type === type).map((block) => block[type]).join("");
    calls = message.content.filter((block) => block.type === "tool_use");
    note(joined("text"), joined("thinking"), calls.map((call) => [call.name, call.input]));
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: multiply(call.input) }));
    if (results.length) messages.push({ role: "user", content: results });
  }
}
report();
