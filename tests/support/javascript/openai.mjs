// The OpenAI SDK over chat completions and over responses, with everything sent again or with the earlier response named.

import OpenAI from "openai";
import { baseUrl, description, key, multiply, name, note, over, parameters, report, turns } from "./common.mjs";

const client = new OpenAI({ baseURL: baseUrl, apiKey: key, maxRetries: 0 });
const model = "default";

async function completion(request, stream) {
  if (!stream) return (await client.chat.completions.create(request)).choices[0].message;
  const message = { role: "assistant", content: "", reasoning_content: "", tool_calls: [] };
  for await (const { choices } of await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
    if (!choices.length) continue;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choices[0].delta;
    message.content += content ?? "";
    message.reasoning_content += reasoning ?? "";
    for (const { index, ...call } of calls ?? []) {
      if (message.tool_calls[index]) message.tool_calls[index].function.arguments += call.function.arguments;
      else message.tool_calls[index] = call;
    }
  }
  if (!message.tool_calls.length) delete message.tool_calls;
  return message;
}

async function chat() {
  const messages = [];
  for (const { question, stream } of turns) {
    messages.push({ role: "user", content: question });
    for (let calls = [null]; calls.length; ) {
      const tools = [{ type: "function", function: { name, description, parameters } }];
      const message = await completion({ model, messages, tools }, stream);
      messages.push(message);
      calls = (message.tool_calls ?? []).map((call) => ({ id: call.id, ...call.function, arguments: JSON.parse(call.function.arguments) }));
      note(message.content, message.reasoning_content, calls.map((call) => [call.name, call.arguments]));
      for (const call of calls) messages.push({ role: "tool", tool_call_id: call.id, content: multiply(call.arguments) });
    }
  }
}

async function responses(byId) {
  let input = [];
  let previous;
  for (const { question, stream } of turns) {
    input.push({ role: "user", content: question });
    for (let calls = [null]; calls.length; ) {
      const tools = [{ type: "function", name, description, parameters, strict: false }];
      const request = { model, input, tools, previous_response_id: previous };
      const response = stream ? await client.responses.stream(request).finalResponse() : await client.responses.create(request);
      calls = response.output.filter((item) => item.type === "function_call");
      const reasoning = response.output.filter((item) => item.type === "reasoning").map((item) => item.content[0].text);
      note(response.output_text, reasoning.join(""), calls.map((call) => [call.name, JSON.parse(call.arguments)]));
      const results = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: multiply(JSON.parse(call.arguments)) }));
      previous = byId ? response.id : undefined;
      input = byId ? results : [...input, ...response.output, ...results];
    }
  }
}

await (over === "chat" ? chat() : responses(over === "responses, by id"));
report();
