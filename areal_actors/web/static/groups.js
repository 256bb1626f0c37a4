// Groups: the answers to one task side by side. Equal answers are one; what differs from the best answer is marked.

import { fetched } from "./data.js";
import { count, counted, element, empty, replace, short } from "./dom.js";
import { differences } from "./text_diff.js";

const LISTED = 300, DOTS = 48;

export class Groups {
  constructor(data, root, goTo) {
    Object.assign(this, { data, goTo, group: "", shown: "" });
    this.filter = element("input", { type: "search", placeholder: "group or task", aria: { label: "Show groups of this number or task" } });
    this.order = element("select", { aria: { label: "Order of the groups" } }, ...[["new", "newest first"], ["spread", "largest spread of rewards first"], ["low", "lowest reward first"]].map(([value, text]) => element("option", { value, textContent: text })));
    this.purpose = element("select", { aria: { label: "Groups of training or evaluation" } }, ...[["train", "training"], ["evaluate", "evaluation"]].map(([value, text]) => element("option", { value, textContent: text })));
    this.list = element("div", { className: "list", aria: { label: "Groups", role: "group" } });
    this.answers = element("div", { className: "answers", tabIndex: 0, aria: { label: "Answers of the group", role: "region" } });
    for (const control of [this.filter, this.purpose, this.order]) control.addEventListener("input", () => this.data.changed());
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Groups" }), this.filter, this.purpose, this.order, element("span", { className: "dim", textContent: "reward: ● 1  ◐ between  ○ 0  · none yet  ✕ failed" })), element("div", { className: "split" }, this.list, this.answers));
  }

  state() { return { group: this.group, purpose: this.purpose.value === "train" ? "" : this.purpose.value, order: this.order.value === "new" ? "" : this.order.value, search: this.filter.value }; }

  open({ group, purpose, order, search }) {
    if (purpose) this.purpose.value = purpose;
    if (order) this.order.value = order;
    if (search !== undefined) this.filter.value = search;
    if (!group) return true;
    const rows = this.data.episodes().filter(row => row.group === group);
    if (!rows.length) return false;
    this.purpose.value = rows[0].purpose;
    this.group = group;
    return true;
  }

  groups() {
    const groups = new Map();
    for (const row of this.data.episodes()) {
      if (row.purpose !== this.purpose.value) continue;
      const found = groups.get(row.group) ?? { name: row.group, task: "", rows: [], rewards: [] };
      found.rows.push(row);
      found.task ||= row.task;
      const reward = this.data.reward(row);
      if (reward !== null) found.rewards.push(reward);
      groups.set(row.group, found);
    }
    const spread = one => one.rewards.length ? Math.max(...one.rewards) - Math.min(...one.rewards) : -1;
    const mean = one => one.rewards.length ? one.rewards.reduce((sum, value) => sum + value, 0) / one.rewards.length : Infinity;
    const text = this.filter.value.trim(), found = [...groups.values()].filter(one => !text || one.name === text || one.task.includes(text)).reverse();
    if (this.order.value === "spread") found.sort((one, other) => spread(other) - spread(one));
    if (this.order.value === "low") found.sort((one, other) => mean(one) - mean(other));
    this.differing = found.find(one => spread(one) > 0);
    return found;
  }

  draw() {
    const groups = this.groups();
    if (!groups.some(one => one.name === this.group)) this.group = (this.differing ?? groups[0])?.name ?? "";
    replace(this.list, ...groups.slice(0, LISTED).map(one => this.entry(one)), groups.length > LISTED ? empty(`${count(groups.length - LISTED)} more; write a number or a task above.`) : "", groups.length ? "" : empty("No group has begun at this event, or none matches."));
    this.load();
  }

  // A group with a mark for each attempt, whose shape is its reward.
  entry(one) {
    const marks = one.rows.slice(0, DOTS).map(row => mark(this.data.reward(row), this.data.station(row))), text = marks.map(([shape]) => shape).join("");
    const dots = element("span", { className: "dots", aria: { hidden: "true" } }, ...marks.map(([shape, name]) => element("span", { className: name, textContent: shape })), one.rows.length > DOTS ? `+${one.rows.length - DOTS}` : "");
    const made = element("button", { title: `rewards ${one.rewards.map(short).join(", ") || "none yet"}`, onclick: () => { this.group = one.name; this.data.changed(); } }, element("b", { textContent: one.name }), dots, element("span", { className: "dim", textContent: this.purpose.value === "train" ? one.task : "" }));
    made.setAttribute("aria-pressed", String(one.name === this.group));
    made.setAttribute("aria-label", `group ${one.name} ${one.task}, rewards ${text}`);
    return made;
  }

  async load() {
    const rows = this.data.episodes().filter(row => row.group === this.group);
    const state = JSON.stringify([this.group, rows.map(row => [row.id, this.data.station(row)])]);
    if (!rows.length || state === this.shown) return rows.length ? undefined : replace(this.answers);
    this.shown = state;
    const asked = this.group, { episodes } = await fetched(`api/group/${encodeURIComponent(asked)}`);
    if (asked !== this.group) return;
    const tasks = new Set(rows.map(row => row.task)), task = tasks.size > 1 ? {} : episodes.find(one => Object.keys(one.task).length)?.task ?? {};
    this.manyTasks = tasks.size > 1;
    const number = this.data.columns.episodes.indexOf("id"), details = new Map(episodes.map(one => [one.row[number], one]));
    const sets = this.equalAnswers(rows, details), best = sets[0]?.text ?? "", marked = !this.manyTasks && sets.length > 1;
    const heading = rows.length > 1 ? `group ${asked}: ${counted(rows.length, "attempt")}, ${counted(sets.length, "different answer")}` : `group ${asked}`;
    replace(this.answers, element("h3", { textContent: heading }), element("dl", {}, ...Object.entries(task).flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: typeof value === "string" ? value : JSON.stringify(value) })])), marked ? element("p", { className: "legend" }, element("mark", { textContent: "marked" }), ": differs from the first answer") : "", element("div", { className: "side" }, ...sets.map((one, index) => this.answer(one, details, marked ? (index ? best : sets[1].text) : null))));
  }

  // Attempts with the same text, reward and station, the best first.
  equalAnswers(rows, details) {
    const sets = new Map();
    for (const row of rows) {
      const ended = row.ended && row.ended <= this.data.now, detail = details.get(row.id), text = ended ? detail?.output || detail?.detail || "" : "";
      const key = ended && !this.manyTasks ? JSON.stringify([text, this.data.reward(row), this.data.outcome(row)]) : row.id;
      const found = sets.get(key) ?? { rows: [], text, reward: this.data.reward(row), ended };
      found.rows.push(row);
      sets.set(key, found);
    }
    return [...sets.values()].sort((one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity) || other.rows.length - one.rows.length);
  }

  answer({ rows, text, reward, ended }, details, other) {
    const detail = details.get(rows[0].id), [shape, name] = mark(reward, this.data.station(rows[0]));
    const bar = element("p", { className: `reward ${name}` }, element("span", { className: "shape", aria: { hidden: "true" }, textContent: shape }), ` ${reward === null ? "no reward" : `reward ${short(reward)}`}`);
    const links = rows.flatMap(row => [element("button", { className: "link", textContent: `episode ${row.name}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}`, onclick: () => this.goTo.episode(row) }), " "]);
    const metrics = Object.entries(detail?.metrics ?? {}).map(([name, value]) => `${name} ${short(value)}`).join(", ");
    const tokens = [...new Set(rows.map(row => this.data.tokens(row)))].sort((one, more) => one - more), spent = tokens.length > 1 ? `${tokens[0]} to ${tokens.at(-1)} tokens` : counted(tokens[0], "token");
    const shown = !ended ? [] : other === null || !text ? [text || "(no text)"] : differences(text, other).map(([part, same]) => same ? part : element("mark", { textContent: part }));
    return element("article", {}, element("h4", {}, ...(rows.length > 1 ? [`${rows.length} equal answers`] : links)), bar, rows.length > 1 ? element("details", {}, element("summary", { textContent: "episodes" }), ...links) : "", this.manyTasks ? element("p", { textContent: detail?.task.question ?? detail?.task.prompt ?? rows[0].task }) : "", element("p", { className: "dim", textContent: [this.data.outcome(rows[0]), spent, ended ? metrics : ""].filter(Boolean).join(" · ") }), element("pre", {}, ...shown));
  }
}

// Shape and class of a reward, so that it is known without its colour.
const mark = (reward, station) => {
  if (["abandoned", "rejected"].includes(station)) return ["✕", "bad"];
  if (reward === null) return ["·", "none"];
  return reward >= 1 ? ["●", "full"] : reward <= 0 ? ["○", "zero"] : ["◐", "partial"];
};
