// The summary of the run, as at its end in the terminal, with answers to held-out tasks before and after.

import { fetched } from "./data.js";
import { element, empty, replace } from "./dom.js";

export class Summary {
  constructor(data, root) {
    Object.assign(this, { data, last: -1, busy: false });
    this.body = element("div");
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Summary" }), element("span", { className: "dim", textContent: "of the newest event, wherever the slider is" })), this.body);
  }

  async draw() {
    const { last } = this.data.head;
    if (!last || this.busy || this.last === last) return;
    this.busy = true;
    const found = await fetched("api/summary").catch(error => ({ error: error.message }));
    Object.assign(this, { busy: false, last });
    if (found.error) return replace(this.body, empty(found.error));
    const rows = found.rows.flatMap(([label, text]) => [element("dt", { textContent: label }), element("dd", { textContent: text })]);
    const tasks = found.answers.map(([question, answers]) => element("article", {}, element("h4", { textContent: question }), ...answers.flatMap(([label, text]) => [element("p", { className: "dim", textContent: label }), element("pre", { textContent: text })])));
    replace(this.body, element("dl", {}, ...rows), tasks.length ? element("h3", { textContent: "Answers to held-out tasks, before and after" }) : "", tasks.length ? element("div", { className: "side" }, ...tasks) : "");
  }
}
