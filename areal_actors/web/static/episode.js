// One episode: its calls as a tree, every sampled token coloured by what is chosen.

import { fetched } from "./data.js";
import { count, element, empty, replace, short, versionColour } from "./dom.js";

const MODES = ["log-probability", "weight version", "advantage", "trained", "engine – trainer"];
const tint = (name, share) => `rgb(var(--${name}) / ${(0.75 * Math.min(share, 1)).toFixed(3)})`;

export class Episode {
  constructor(data, root) {
    Object.assign(this, { data, row: null, detail: null, trained: null, mode: MODES[0], state: "" });
    this.name = element("input", { type: "search", placeholder: "12.3", aria: { label: "Name of an episode" }, size: 12 });
    const form = element("form", {}, element("label", {}, "episode ", this.name), element("button", { textContent: "show" }));
    form.addEventListener("submit", event => { event.preventDefault(); this.find(this.name.value.trim()); });
    this.title = element("h2", { textContent: "Episode" });
    this.modes = element("fieldset", { className: "modes" }, element("legend", { textContent: "colour" }), ...MODES.map((mode, index) => {
      const input = element("input", { type: "radio", name: "colour", checked: index === 0, value: mode });
      input.addEventListener("change", () => { this.mode = mode; this.paint(); });
      return element("label", {}, input, ` ${mode}`);
    }));
    this.note = element("p", { className: "legend" });
    this.facts = element("dl");
    this.calls = element("div", { className: "calls" });
    this.tip = element("output", { className: "tip", textContent: "Point at a token, or move with the arrow keys when one has the focus." });
    this.calls.addEventListener("mouseover", event => this.point(event.target));
    this.calls.addEventListener("focusin", event => this.point(event.target));
    this.calls.addEventListener("keydown", event => this.move(event));
    root.append(element("div", { className: "bar" }, this.title, form), this.facts, this.modes, this.note, this.calls, this.tip);
  }

  find(name) {
    const rows = this.data.episodes().filter(row => row.name === name);
    if (rows.length) return this.show(rows.find(row => row.outcome === "exported") ?? rows.at(-1));
    replace(this.calls, empty(`The run has no episode ${name} at this event. Names are those of the swim lanes, as in 12.3.`));
  }

  show(row) {
    this.row = row;
    this.state = "";
    this.name.value = row.name;
    this.draw();
  }

  async draw() {
    if (!this.row) {
      const last = this.data.episodes().filter(row => row.outcome === "exported" && row.ended <= this.data.now).at(-1);
      if (!last) return replace(this.calls, empty("No episode has ended at this event."));
      return this.show(last);
    }
    const row = this.row = this.data.tables.episodes[this.row.id], state = `${row.id} ${row.ended} ${row.batch} ${this.data.station(row)}`;
    if (state === this.state) return;
    this.state = state;
    this.title.textContent = `Episode ${row.name}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}`;
    this.detail = await fetched(`/api/episode/${row.id}`);
    if (this.row.id !== row.id) return;
    this.trained = null;
    this.render();
    if (!row.batch || row.batch > this.data.now) return;
    this.note.textContent = "Advantages are being computed from the log …";
    const trained = await fetched(`/api/episode/${row.id}/trained`);
    if (this.row.id !== row.id) return;
    this.trained = trained;
    this.paint();
  }

  render() {
    const ended = this.row.ended && this.row.ended <= this.data.now;
    const row = this.row, detail = this.detail, step = this.data.steps().find(one => one.step === row.step), difference = step?.metrics.train_infer_logprob_diff_max;
    const facts = { task: row.task, ...detail.task, outcome: this.data.outcome(row), failure: ended ? detail.detail : "", "ended by": ended ? detail.ended_by : "", reward: this.data.reward(row) === null ? "" : short(row.reward), ...(ended ? detail.metrics : {}), feedback: ended ? detail.feedback.join("\n") : "", "staleness bound": row.step && row.batch <= this.data.now ? `${this.data.bound()} versions; step ${row.step} trains version ${row.step - 1}` : "", "engine – trainer": difference === undefined ? "" : `at most ${short(difference)} nats for a token of its step`, output: ended ? detail.output : "" };
    replace(this.facts, ...Object.entries(facts).filter(([name, value]) => value !== "" && !(name === "id" && value === row.task) && value !== undefined && value !== null).flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: typeof value === "string" ? value : JSON.stringify(value) })]));
    this.tokens = [];
    if (!ended || !detail.calls.length) {
      const reason = !ended ? "The episode has not ended at this event." : `${detail.gaps} It made ${count(row.calls.length)} calls with ${count(row.tokens)} tokens.`;
      this.note.textContent = "";
      return replace(this.calls, empty(reason));
    }
    replace(this.calls, ...detail.calls.map((call, index) => this.call(call, index)));
    this.paint();
  }

  call(call, index) {
    const text = element("pre"), versions = [...new Set(call.weight_versions)];
    call.token_ids.forEach((id, place) => {
      const token = element("span", { className: "token", tabIndex: -1, textContent: visible(call.tokens[place] ?? ` ${id}`) });
      token.dataset.index = this.tokens.length;
      this.tokens.push({ token, call, index, place });
      text.append(token);
    });
    if (index === 0 && text.firstChild) text.firstChild.tabIndex = 0;
    const facts = [`${count(call.token_ids.length)} sampled by ${call.worker || "several workers"}`, `weight version ${versions.join(", ")}`, call.finish_reason, call.reward === null ? "" : `reward ${short(call.reward)}`];
    const made = element("article", {}, element("h3", { textContent: `call ${index + 1} of ${this.detail.calls.length}  ${call.interaction}` }), element("p", { className: "dim", textContent: facts.filter(Boolean).join(" · ") }), call.prompt ? element("details", {}, element("summary", { textContent: "prompt" }), element("pre", { textContent: call.prompt })) : "", text);
    made.style.marginLeft = `${1.5 * call.depth}rem`;
    return made;
  }

  // The call in the answer of `areal-actors show --trace`, with masks and advantages.
  of(call) { return this.trained?.calls?.find(one => one.interaction === call.interaction); }

  paint() {
    if (!this.detail?.calls.length) return;
    const every = (this.trained?.calls ?? []).flatMap(call => call.advantages).filter(value => value !== null), largest = Math.max(1e-9, ...every.map(Math.abs));
    const newest = this.row.step ? this.row.step - 1 : this.data.version();
    const background = {
      "log-probability": ({ call, place }) => tint("low", -call.logprobs[place] / 5),
      "weight version": ({ call, place }) => versionColour(call.weight_versions[place], 0.45),
      "advantage": ({ call, place }) => { const value = this.of(call)?.advantages[place] ?? null; return value ? tint(value < 0 ? "low" : "high", Math.abs(value) / largest) : ""; },
      "trained": ({ call, place }) => this.of(call)?.trained[place] ? tint("high", 0.5) : "",
      "engine – trainer": () => "",
    }[this.mode];
    for (const one of this.tokens) one.token.style.background = background(one);
    const problem = this.trained?.error || this.trained?.without_advantages || "", pending = this.row.batch ? "being computed from the log …" : this.row.outcome === "exported" ? "not known before its batch is formed" : `not there: the episode was ${this.row.outcome}, which nothing trains`;
    this.note.textContent = {
      "log-probability": "Darker: less likely under the weights that sampled it (at ‑5 nats and below the darkest).",
      "weight version": `Colour: the version that sampled it. The step that trains it has version ${newest}; the staleness bound is ${this.data.bound()}.`,
      "advantage": problem ? `Advantages are not known: ${problem}` : this.trained ? `Green: positive, red: negative; the largest is ${short(largest)}. No colour: not trained, or 0.` : `Advantages are ${pending}`,
      "trained": this.trained ? "Green: in the loss. No colour: masked." : `Masks are ${pending}`,
      "engine – trainer": "The log has this difference for a step, not for a token: see the facts above for the largest of its step.",
    }[this.mode];
    if (this.detail.gaps) this.note.textContent += ` ${this.detail.gaps}`;
    if (!this.detail.has_texts) this.note.textContent += " This log has no tokenizer: tokens have their ids.";
  }

  point(target) {
    const found = this.tokens?.[target.dataset?.index];
    if (!found) return;
    const { call, place, index } = found, trace = this.of(call), advantage = trace?.advantages[place];
    this.tip.textContent = [`token ${place} of call ${index + 1}`, `id ${call.token_ids[place]}`, call.tokens[place] === null ? "" : JSON.stringify(call.tokens[place]), `log p ${call.logprobs[place].toFixed(4)}`, `weight version ${call.weight_versions[place]}`, trace ? (trace.trained[place] ? `trained in step ${this.row.step}` : `not trained: ${trace.untrained}`) : "", advantage === null || advantage === undefined ? "" : `advantage ${advantage.toFixed(4)}`].filter(Boolean).join(" · ");
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], here = Number(event.target.dataset?.index);
    if (!step || Number.isNaN(here)) return;
    event.preventDefault();
    event.stopPropagation();
    this.tokens[Math.min(Math.max(here + step, 0), this.tokens.length - 1)].token.focus();
  }
}

const visible = text => text === "" ? "∅" : text.replace(/\n/g, "↵\n").replace(/\t/g, "→\t");
