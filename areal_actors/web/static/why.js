// What limits the run: the verdict, what to change, and the figures behind it, as `areal-actors why` prints them.

import { fetched } from "./data.js";
import { duration, element, empty, replace } from "./dom.js";

const LABEL = 12; // columns of the label of a figure

export class Why {
  constructor(data, root) {
    Object.assign(this, { data, last: -1, busy: false, failed: false });
    this.body = element("div");
    this.again = element("button", { textContent: "look again", hidden: true, onclick: () => this.load() });
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "What limits the run" }), this.again), this.body);
  }

  draw() {
    if (!this.data.head.last || this.busy) return;
    if (this.last < 0 || (this.data.head.state === "ended" && this.last !== this.data.head.last)) this.load();
    this.again.hidden = this.busy || (!this.failed && this.last === this.data.head.last);
  }

  async load() {
    this.busy = this.again.hidden = true;
    if (this.last < 0) replace(this.body, empty("The log is being read for this …"));
    const last = this.data.head.last, found = await fetched("api/why").catch(error => ({ error: error.message }));
    Object.assign(this, { busy: false, last, failed: Boolean(found.error) });
    this.again.hidden = !this.failed && this.last === this.data.head.last;
    if (found.error) return replace(this.body, empty(found.error));
    const { verdict, advice, further, figures } = found, rows = [];
    for (const line of figures) rows.push(element("dt", { textContent: line.slice(0, LABEL).trim() }), element("dd", { textContent: line.slice(LABEL) }));
    replace(this.body,
      element("div", { className: "headline" }, element("p", { textContent: verdict }), ...further.map(text => element("p", { textContent: `also: ${text}` }))),
      advice.length ? element("h3", { textContent: "To change it" }) : "",
      advice.length ? element("ul", {}, ...advice.map(text => element("li", { textContent: text }))) : "",
      element("h3", { textContent: "Figures" }), element("dl", {}, ...rows),
      element("p", { className: "legend", textContent: `Of the log up to event ${last.toLocaleString("en-US")}, ${duration(found.seconds)} of the trainer's time; of the newest event, wherever the slider is.` }));
  }
}
