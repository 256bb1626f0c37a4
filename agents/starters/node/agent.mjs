// An agent with one model call: the task is JSON on standard input, the last line of output is the result.
import { text } from "node:stream/consumers";

const task = JSON.parse(await text(process.stdin));
const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: `Bearer ${process.env.OPENAI_API_KEY}` },
  body: JSON.stringify({ model: "default", messages: [{ role: "user", content: task.question }] }),
});
if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
const completion = await answer.json();
console.log(JSON.stringify({ output: completion.choices[0].message.content ?? "" }));
