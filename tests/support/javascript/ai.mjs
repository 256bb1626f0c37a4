// Vercel's AI SDK with each of its providers for these protocols; it runs the tool loop itself.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import { baseUrl, description, key, multiply, name, note, over, parameters, report, turns } from "./common.mjs";

const options = { baseURL: baseUrl, apiKey: key };
const models = {
  openai: () => createOpenAI(options)("default"),
  "openai, not stored": () => createOpenAI(options)("default"),
  "openai, chat": () => createOpenAI(options).chat("default"),
  anthropic: () => createAnthropic(options)("default"),
  compatible: () => createOpenAICompatible({ ...options, name: "areal", includeUsage: true }).chatModel("default"),
};
const providerOptions = {
  "openai, not stored": { openai: { store: false, forceReasoning: true, reasoningSummary: "auto" } },
  anthropic: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
}[over];
const tools = { [name]: tool({ description, inputSchema: jsonSchema(parameters), execute: multiply }) };
const model = models[over]();
const messages = [];

for (const { question, stream } of turns) {
  messages.push({ role: "user", content: question });
  const request = { model, messages, tools, providerOptions, stopWhen: isStepCount(5), maxRetries: 0 };
  const onError = ({ error }) => {
    throw error;
  };
  const result = stream ? streamText({ ...request, onError }) : await generateText(request);
  for (const step of await result.steps) {
    note(step.text, step.reasoningText, step.toolCalls.map((call) => [call.toolName, call.input]));
  }
  messages.push(...(await result.responseMessages));
}
report();
