// What other settings would have trained from the recorded episodes, beside what was; its curves are laid over those recorded.

import { fetched } from "./data.js";
import { element, empty, replace, table } from "./dom.js";

export class WhatIf {
  constructor(data, root, goTo) {
    Object.assign(this, { data, goTo, settings: "", busy: false });
    this.input = element("input", { type: "search", placeholder: "staleness_gate.max_staleness=0", size: 44, aria: { label: "Settings as KEY=VALUE, separated by spaces" } });
    this.button = element("button", { textContent: "compare" });
    const form = element("form", { className: "grow" }, this.input, this.button);
    form.addEventListener("submit", event => { event.preventDefault(); this.ask(this.input.value.trim()); });
    this.body = element("div", { aria: { live: "polite" } });
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Other settings" }), form), element("p", { className: "legend", textContent: "The recorded episodes are given to batcher and algorithm with these settings. Nothing is sampled and nothing is trained: it is exact up to the first step that differs." }), this.body);
  }

  state() { return { set: this.settings }; }

  open({ set }) {
    if (!set || set === this.settings) return true;
    if (this.data.head.state === "reading") return false;
    this.input.value = set;
    this.ask(set);
    return true;
  }

  draw() {
    if (this.settings || this.busy || this.body.childElementCount) return;
    const over = this.data.whatIfs ?? [];
    replace(this.body, over.length ? element("p", { textContent: `Curves are laid over already: ${over.map(one => one.label).join("; ")}.` }) : empty("Nothing is compared yet. A log answers settings of batcher and algorithm, staleness_gate.max_staleness, trainer.batch_size and task.turn_discount, as in staleness_gate.max_staleness=0 or algorithm.name=rloo."));
  }

  async ask(settings) {
    if (!settings || this.busy) return;
    Object.assign(this, { settings, busy: true });
    this.button.disabled = true;
    replace(this.body, empty("The log is being read with these settings …"));
    this.data.changed();
    const found = await fetched("api/what-if", { method: "POST", body: JSON.stringify(settings.split(/\s+/)), headers: { "X-Requested-With": "page" } }).catch(error => ({ error: error.message }));
    this.busy = this.button.disabled = false;
    if (found.error) return replace(this.body, element("p", { className: "failed", textContent: found.error }));
    const { comparison, curves } = found;
    if (!comparison.rows) return replace(this.body, element("pre", { textContent: JSON.stringify(comparison, null, 1) }));
    if (curves && !this.data.whatIfs.some(one => one.label === curves.label)) this.data.whatIfs.push(curves);
    const [, ...rows] = comparison.rows;
    replace(this.body,
      element("div", { className: "headline" }, element("p", { textContent: comparison.verdict }), ...comparison.notes.map(text => element("p", { textContent: text }))),
      element("div", { className: "scroll" }, table("Recorded, and with these settings", ["figure", "recorded", "what if"], rows)),
      curves ? element("p", {}, element("button", { className: "link", textContent: "show its curves over the recorded ones", onclick: () => this.goTo.view("overview") })) : "");
  }
}
