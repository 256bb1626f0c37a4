// One episode: its calls as a tree, every sampled token coloured by what is chosen.

import { fetched } from "./data.js";
import { count, element, empty, replace, short } from "./dom.js";
import { MODES, paint, TokenColours } from "./token_colours.js";

const FEW = 3; // calls that are all open

export class Episode {
  constructor(data, root, goTo) {
    Object.assign(this, { data, goTo, row: null, detail: null, trained: null, mode: MODES[0], shown: "", began: "" });
    this.name = element("input", { type: "search", placeholder: "12.3", aria: { label: "Name of an episode" }, size: 12 });
    const form = element("form", {}, element("label", {}, "episode ", this.name), element("button", { textContent: "show" }));
    form.addEventListener("submit", event => { event.preventDefault(); this.find(this.name.value.trim()); });
    this.title = element("h2", { textContent: "Episode" });
    this.modes = element("fieldset", { className: "modes" }, element("legend", { textContent: "colour" }), ...MODES.map((mode, index) => {
      const input = element("input", { type: "radio", name: "colour", checked: index === 0, value: mode });
      input.addEventListener("change", () => { this.mode = mode; this.paint(); this.data.changed(); });
      return element("label", {}, input, ` ${mode}`);
    }));
    this.note = element("p", { className: "legend" });
    this.scale = element("p", { className: "scale", aria: { label: "Colours and their values" } });
    this.facts = element("dl", { tabIndex: 0 });
    this.calls = element("div", { className: "calls" });
    this.tip = element("output", { className: "tip at", hidden: true });
    this.start = element("p", { className: "legend" });
    this.calls.addEventListener("mouseover", event => this.point(event.target));
    for (const kind of ["mouseleave", "focusout"]) this.calls.addEventListener(kind, () => { this.tip.hidden = true; });
    this.calls.addEventListener("focusin", event => this.point(event.target));
    this.calls.addEventListener("keydown", event => this.move(event));
    root.append(element("div", { className: "bar" }, this.title, form), element("div", { className: "columns" }, this.facts, element("div", {}, this.modes, this.scale, this.note, this.start, this.calls)), this.tip);
  }

  find(name) {
    if (this.open({ name })) return this.data.changed();
    replace(this.calls, empty(`The run has no episode ${name} at this event. Names are those of the swim lanes, as in 12.3.`));
  }

  state() { return this.row ? { name: this.row.name, attempt: this.row.attempt > 1 ? this.row.attempt : "", colour: this.mode === MODES[0] ? "" : this.mode } : {}; }

  open({ name, attempt, colour }) {
    if (MODES.includes(colour)) {
      this.mode = colour;
      for (const input of this.modes.querySelectorAll("input")) input.checked = input.value === colour;
      if (this.detail) this.paint();
    }
    if (!name) return true;
    const rows = this.data.episodes().filter(row => row.name === name && (!attempt || row.attempt === Number(attempt)));
    if (!rows.length) return false;
    this.row = rows.find(row => row.outcome === "exported") ?? rows.at(-1);
    this.name.value = name;
    return true;
  }

  async draw() {
    if (!this.row) {
      const last = this.data.episodes().filter(row => row.outcome === "exported" && row.ended <= this.data.now).at(-1);
      if (!last) return replace(this.calls, empty(this.data.head.last ? "No episode has ended at this event." : "The log is being read …"));
      this.row = last;
      this.name.value = last.name;
    }
    const row = this.row = this.data.tables.episodes[this.row.id], state = `${row.id} ${row.ended} ${row.batch} ${this.data.station(row)}`;
    if (state === this.shown) return;
    this.shown = state;
    this.title.textContent = `Episode ${row.name}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}`;
    if (!this.detail) replace(this.calls, empty("The episode is being read from the log …"));
    const detail = await fetched(`api/episode/${row.id}`);
    if (this.row.id !== row.id) return;
    Object.assign(this, { detail, trained: null });
    this.render();
    if (!row.batch || row.batch > this.data.now) return;
    const trained = await fetched(`api/episode/${row.id}/trained`);
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
    this.tip.hidden = true;
    if (!ended || !detail.calls.length) {
      const reason = !ended ? "The episode has not ended at this event." : `${detail.gaps} It made ${count(row.calls.length)} calls with ${count(row.tokens)} tokens.`;
      this.note.textContent = this.start.textContent = "";
      replace(this.scale);
      return replace(this.calls, empty(reason));
    }
    const [start, reason] = interesting(detail.calls), few = detail.calls.length <= FEW;
    replace(this.calls, ...detail.calls.map((call, index) => this.call(call, index, few || index === start)));
    replace(this.start, ...(detail.calls.length > 1 ? [`Begins at call ${start + 1} of ${detail.calls.length}: ${reason}. `, few ? "" : element("button", { className: "link", textContent: "open all calls", onclick: () => { for (const one of this.calls.querySelectorAll(":scope > details")) one.open = true; } })] : []));
    this.paint();
    const began = `${row.id} ${row.ended}`;
    if (start > 0 && began !== this.began) this.calls.children[start].scrollIntoView({ block: "start" });
    this.began = began;
  }

  call(call, index, open) {
    const text = element("pre"), versions = [...new Set(call.weight_versions)];
    call.token_ids.forEach((id, place) => {
      const token = element("span", { className: "token", tabIndex: -1, textContent: visible(call.tokens[place] ?? ` ${id}`) });
      token.dataset.index = this.tokens.length;
      this.tokens.push({ token, call, index, place });
      text.append(token);
    });
    if (text.firstChild) text.firstChild.tabIndex = 0;
    const facts = [`${count(call.token_ids.length)} sampled by ${call.worker || "several workers"}`, `weight version ${versions.join(", ")}`, call.finish_reason, call.reward === null ? "" : `reward ${short(call.reward)}`, call.error ? `tool call not read: ${call.error}` : ""];
    const made = element("details", { className: "call", open }, element("summary", {}, element("h3", { textContent: `call ${index + 1} of ${this.detail.calls.length}  ${call.interaction}` })), element("p", { className: "dim", textContent: facts.filter(Boolean).join(" · ") }), call.prompt ? element("details", {}, element("summary", { textContent: "prompt" }), element("pre", { textContent: call.prompt })) : "", text);
    made.style.marginLeft = `${Math.min(1.5 * call.depth, 6)}rem`;
    return made;
  }

  // The call in the answer of `areal-actors show --trace`, with masks and advantages.
  of(call) { return this.trained?.calls?.find(one => one.interaction === call.interaction); }

  paint() {
    if (!this.detail?.calls.length) return;
    const newest = this.row.step ? this.row.step - 1 : this.data.version(), colours = new TokenColours(this.tokens, call => this.of(call));
    for (const one of this.tokens) paint(one.token, colours.style(this.mode, one));
    replace(this.scale, ...colours.legend(this.mode));
    const problem = this.trained?.error || this.trained?.without_advantages || "", pending = this.row.batch ? "being computed from the log …" : this.row.outcome === "exported" ? "not known before its batch is formed" : `not there: the episode was ${this.row.outcome}, which nothing trains`;
    this.note.textContent = {
      "log-probability": "Log-probability under the weights that sampled the token; the darkest is the least likely of this episode.",
      "weight version": `The version that sampled the token. The step that trains it has version ${newest}; the staleness bound is ${this.data.bound()}.`,
      "advantage": problem ? `Advantages are not known: ${problem}` : this.trained ? (colours.largest ? "No colour: not trained, or 0." : "All advantages of this episode are 0: nothing is learnt from it.") : `Advantages are ${pending}`,
      "trained": this.trained ? "" : `Masks are ${pending}`,
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
    this.tip.hidden = false;
    const box = target.getBoundingClientRect(), own = this.tip.getBoundingClientRect(), below = box.bottom + 6;
    this.tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
    this.tip.style.top = `${below + own.height < innerHeight - 50 ? below : Math.max(8, box.top - own.height - 6)}px`;
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

// The call that an episode begins with, and why.
const interesting = calls => {
  const first = condition => calls.findIndex(condition), rewards = calls.map(call => Math.abs(call.reward ?? 0)), largest = Math.max(...rewards);
  const mean = call => call.logprobs.length ? call.logprobs.reduce((sum, value) => sum + value, 0) / call.logprobs.length : 0;
  if (first(call => call.error) >= 0) return [first(call => call.error), "its tool call could not be read"];
  if (first(call => call.finish_reason === "length") >= 0) return [first(call => call.finish_reason === "length"), "it was cut at the limit of tokens"];
  if (largest > 0) return [rewards.indexOf(largest), "the agent gave it the largest reward"];
  const means = calls.map(mean), least = Math.min(...means);
  return [means.indexOf(least), "its tokens were the least likely"];
};
