// What the programs share: the session and the turns, one tool, and the report of the answers.

export const { baseUrl, key, over, turns } = JSON.parse(process.argv[2]);

export const name = "multiply";
export const description = "Multiply two numbers.";
export const parameters = {
  type: "object",
  properties: { a: { type: "number" }, b: { type: "number" } },
  required: ["a", "b"],
};
export const multiply = ({ a, b }) => String(a * b);

const answers = [];

export function note(text, reasoning, calls) {
  answers.push({ text: text ?? "", reasoning: reasoning ?? "", calls });
}

export function report() {
  process.stdout.write(JSON.stringify(answers));
}
