// Batches: what each step trained, and the episodes that it was made of.

import { count, duration, element, empty, moment, paintVersion, replace, short, table } from "./dom.js";

export class Batches {
  constructor(data, root, goTo) {
    Object.assign(this, { data, goTo, chosen: null });
    this.list = element("div", { className: "scroll" });
    this.detail = element("div");
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Batches" }), element("span", { className: "dim", textContent: "Numbers in the bars: staleness; colours: weight version, as in the swim lanes; striped: masked" })), this.list, this.detail);
  }

  state() { return { step: this.data.tables.batches?.[this.chosen]?.step }; }

  open({ step }) {
    if (!step) return true;
    const batch = this.data.before("batches").findLast(one => one.step === Number(step));
    if (batch) this.chosen = batch.id;
    return Boolean(batch);
  }

  draw() {
    const batches = this.data.before("batches"), steps = new Map(this.data.steps().map(row => [row.step, row]));
    if (!batches.length) { replace(this.detail); return replace(this.list, empty("No batch is formed at this event. The first one follows when enough groups are complete.")); }
    const rows = batches.map((batch, index) => {
      const members = this.members(batch), metrics = steps.get(batch.step)?.metrics ?? {}, before = batches[index - 1];
      const button = element("button", { className: "link", textContent: `step ${batch.step}`, onclick: () => { this.chosen = batch.id; this.data.changed(); } });
      return [button, moment(batch.at), batch.groups.length, members.length, members.reduce((sum, row) => sum + row.tokens, 0), this.staleness(batch, members), short(metrics.reward_mean), metrics.masked_frac === undefined ? "–" : `${(100 * metrics.masked_frac).toFixed(1)}%`, batch.dropped_trajectories - (before?.dropped_trajectories ?? 0), batch.refused];
    });
    replace(this.list, table("Batches by step", ["step", "formed at", "groups", "episodes", "tokens", "tokens by staleness", "reward", "masked", "dropped before", "left out"], rows.reverse()));
    this.drawChosen(batches.find(batch => batch.id === this.chosen) ?? batches.at(-1));
  }

  members(batch) { return batch.groups.flat().map(id => this.data.tables.episodes[id]).filter(Boolean); }

  staleness(batch, members) {
    const tokens = new Map();
    for (const row of members) for (const call of row.calls) for (const [version, number] of call[3]) tokens.set(version, (tokens.get(version) ?? 0) + number);
    const all = [...tokens.values()].reduce((sum, number) => sum + number, 0) || 1, bar = element("span", { className: "shares" });
    for (const [version, number] of [...tokens].sort(([one], [other]) => other - one)) {
      const stale = batch.step - 1 - version, part = element("span", { title: `${count(number)} tokens of version ${version}: staleness ${stale}${version < batch.oldest_version ? ", masked" : ""}`, textContent: number / all > 0.12 ? stale : "" });
      part.style.width = `${(100 * number) / all}%`;
      paintVersion(part, version);
      if (version < batch.oldest_version) part.className = "old";
      bar.append(part);
    }
    return bar;
  }

  drawChosen(batch) {
    const rows = batch.groups.map(group => {
      const members = group.map(id => this.data.tables.episodes[id]).filter(Boolean), waits = members.map(row => batch.at - row.ended_at);
      const links = element("span", {}, ...members.flatMap(row => [element("button", { className: "link", textContent: `${row.name} (${short(row.reward)})`, onclick: () => this.goTo.episode(row) }), " "]));
      const versions = [...new Set(members.flatMap(row => row.calls.flatMap(call => call[3].map(([version]) => version))))].sort((one, other) => one - other);
      return [members[0]?.group ?? "?", members[0]?.task ?? "no longer in the log", links, versions.join(", "), waits.length ? `${duration(Math.min(...waits))} – ${duration(Math.max(...waits))}` : "–"];
    });
    replace(this.detail, element("h3", { textContent: `The batch of step ${batch.step}: ${count(batch.groups.length)} groups, formed by event ${count(batch.position)}; ${batch.oldest_version > 0 ? `tokens of weights older than version ${batch.oldest_version} are not trained` : "no token is too old"}` }), element("div", { className: "scroll" }, table(`Groups of the batch of step ${batch.step}`, ["group", "task", "episodes (reward)", "weight versions", "waited for the batch"], rows)));
  }
}
