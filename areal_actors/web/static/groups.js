// Groups: the answers of the episodes of one task side by side, with their rewards.

import { fetched } from "./data.js";
import { count, counted, element, empty, replace, short } from "./dom.js";

const LISTED = 300, DOTS = 48;

export class Groups {
  constructor(data, root, open) {
    Object.assign(this, { data, open, group: "", shown: "" });
    this.filter = element("input", { type: "search", placeholder: "group or task", aria: { label: "Show groups of this number or task" } });
    this.order = element("select", { aria: { label: "Order of the groups" } }, ...[["new", "newest first"], ["spread", "largest spread of rewards first"], ["low", "lowest reward first"]].map(([value, text]) => element("option", { value, textContent: text })));
    this.purpose = element("select", { aria: { label: "Groups of training or evaluation" } }, ...[["train", "training"], ["evaluate", "evaluation"]].map(([value, text]) => element("option", { value, textContent: text })));
    this.list = element("div", { className: "list", aria: { label: "Groups", role: "group" } });
    this.answers = element("div", { className: "answers" });
    for (const control of [this.filter, this.purpose, this.order]) control.addEventListener("input", () => this.draw());
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Groups" }), this.filter, this.purpose, this.order), element("div", { className: "split" }, this.list, this.answers));
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
    return found;
  }

  draw() {
    const groups = this.groups();
    if (!groups.some(one => one.name === this.group)) this.group = groups[0]?.name ?? "";
    replace(this.list, ...groups.slice(0, LISTED).map(one => this.entry(one)), groups.length > LISTED ? empty(`${count(groups.length - LISTED)} more; write a number or a task above.`) : "", groups.length ? "" : empty("No group has begun at this event, or none matches."));
    this.load();
  }

  entry(one) {
    const dots = element("span", { className: "dots" }, ...one.rows.slice(0, DOTS).map(row => {
      const reward = this.data.reward(row), dot = element("span", { className: "dot", title: reward === null ? this.data.station(row) : `reward ${short(reward)}` });
      if (reward !== null) dot.style.background = rewardColour(reward);
      return dot;
    }), one.rows.length > DOTS ? `+${one.rows.length - DOTS}` : "");
    const made = element("button", { onclick: () => { this.group = one.name; this.draw(); } }, element("b", { textContent: one.name }), dots, element("span", { className: "dim", textContent: this.purpose.value === "train" ? one.task : "" }));
    made.setAttribute("aria-pressed", String(one.name === this.group));
    return made;
  }

  async load() {
    const rows = this.data.episodes().filter(row => row.group === this.group);
    const state = JSON.stringify([this.group, rows.map(row => [row.id, this.data.station(row)])]);
    if (!rows.length || state === this.shown) return rows.length ? undefined : replace(this.answers);
    this.shown = state;
    const asked = this.group, { episodes } = await fetched(`/api/group/${encodeURIComponent(asked)}`);
    if (asked !== this.group) return;
    const tasks = new Set(rows.map(row => row.task)), task = tasks.size > 1 ? {} : episodes.find(one => Object.keys(one.task).length)?.task ?? {};
    this.manyTasks = tasks.size > 1;
    replace(this.answers, element("h3", { textContent: `group ${asked}: ${counted(rows.length, "attempt")}` }), element("dl", {}, ...Object.entries(task).flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: typeof value === "string" ? value : JSON.stringify(value) })])), element("div", { className: "side" }, ...rows.map(row => this.answer(row, episodes))));
  }

  answer(row, episodes) {
    const number = this.data.columns.episodes.indexOf("id"), detail = episodes.find(one => one.row[number] === row.id), reward = this.data.reward(row), ended = row.ended && row.ended <= this.data.now;
    const bar = element("span", { className: "reward", textContent: reward === null ? "no reward" : `reward ${short(reward)}` });
    if (reward !== null) bar.style.borderColor = rewardColour(reward);
    const metrics = Object.entries(detail?.metrics ?? {}).map(([name, value]) => `${name} ${short(value)}`).join(", ");
    return element("article", {}, element("h4", {}, element("button", { className: "link", textContent: `episode ${row.name}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}`, onclick: () => this.open(row) })), bar, this.manyTasks ? element("p", { textContent: detail?.task.question ?? detail?.task.prompt ?? row.task }) : "", element("p", { className: "dim", textContent: [this.data.outcome(row), counted(this.data.tokens(row), "token"), ended ? metrics : ""].filter(Boolean).join(" · ") }), element("pre", { textContent: ended ? detail?.output || detail?.detail || "(no text)" : "" }));
  }
}

export const rewardColour = reward => `hsl(${Math.min(Math.max(reward, 0), 1) * 130} 60% 45%)`;
