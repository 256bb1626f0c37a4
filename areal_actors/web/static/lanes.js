// Swim lanes: a line for each attempt at an episode, coloured by the weight version that sampled each part. Only what is visible is drawn.

import { colour, count, duration, element, moment, paintVersion, replace, short, versionColour } from "./dom.js";

const LANE = 20, RIGHT = 150, TOP = 32, LETTER = 7.3, LONGEST = 26;

const title = row => `${row.name}${row.attempt > 1 ? ` (${row.attempt})` : ""}`.slice(-LONGEST);

export class Lanes {
  constructor(data, root, goTo) {
    Object.assign(this, { data, goTo, selected: -1, rows: [], bottom: true });
    this.filter = element("input", { type: "search", placeholder: "episode, task or group", aria: { label: "Show lanes of this episode, task or group" } });
    this.station = element("select", { aria: { label: "Show lanes of episodes at this station" } }, ...["all", "granted", "sampling", "scored", "exported", "in batch", "trained", "dropped", "abandoned", "rejected", "surplus", "evaluated"].map(name => element("option", { value: name === "all" ? "" : name, textContent: name === "all" ? "every station" : name })));
    this.purpose = element("select", { aria: { label: "Show lanes of training or evaluation" } }, ...[["train", "training"], ["evaluate", "evaluation"], ["", "both"]].map(([value, text]) => element("option", { value, textContent: text })));
    this.fit = element("input", { type: "checkbox", checked: true });
    this.legend = element("p", { className: "legend" });
    this.canvas = element("canvas", { tabIndex: 0, aria: { role: "img" } });
    this.spacer = element("div", { className: "spacer" });
    this.box = element("div", { className: "lanes" }, element("div", { className: "pane" }, this.canvas), this.spacer);
    this.tip = element("output", { className: "tip", textContent: "Point at a lane, or move with the up and down keys; Enter opens the episode." });
    for (const control of [this.filter, this.station, this.purpose, this.fit]) control.addEventListener("input", () => { this.bottom = true; this.selected = -1; this.data.changed(); });
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => {
      this.bottom = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - LANE;
      this.paint();
    }));
    this.canvas.addEventListener("mousemove", event => this.point(this.at(event.offsetY)));
    this.canvas.addEventListener("click", event => { const row = this.rows[this.at(event.offsetY)]; if (row) this.goTo.episode(row); });
    this.canvas.addEventListener("keydown", event => this.key(event));
    root.append(element("div", { className: "bar" }, element("h2", { textContent: "Episodes" }), this.filter, this.station, this.purpose, element("label", {}, this.fit, " fit the time to the lanes in view")), this.legend, this.box, this.tip);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  state() { return { search: this.filter.value, station: this.station.value, purpose: this.purpose.value === "train" ? "" : this.purpose.value || "both" }; }

  open({ search, station, purpose }) {
    if (search !== undefined) this.filter.value = search;
    if (station !== undefined) this.station.value = station;
    if (purpose) this.purpose.value = purpose === "both" ? "" : purpose;
    return true;
  }

  draw() {
    if (!this.box.clientWidth) return;
    const text = this.filter.value.trim(), station = this.station.value, purpose = this.purpose.value;
    this.rows = this.data.episodes().filter(row => (!purpose || row.purpose === purpose) && (!station || this.data.station(row) === station) && (!text || row.name.startsWith(text) || row.task.includes(text) || row.group === text));
    this.spacer.style.height = `${Math.max(this.rows.length * LANE + TOP, 1)}px`;
    const bound = this.data.bound(), oldest = this.data.version() - bound;
    const versions = [...new Set(this.data.before("versions").map(row => row.weight_version))].slice(-8);
    replace(this.legend, `${count(this.rows.length)} attempts. Colour: weight version `, ...versions.map(version => { const key = element("span", { className: "key", textContent: version }); paintVersion(key, version); return key; }),
      bound === null ? "" : ` · staleness bound ${bound}: versions below ${Math.max(oldest, 0)} are too old now (hatched) · grey: waiting · ● scored  ▮ batch  ◆ trained  ✕ dropped or failed`);
    if (this.bottom) this.box.scrollTop = this.box.scrollHeight; // the newest lanes, until one scrolls away from them
    this.paint();
  }

  visible() {
    const first = Math.floor(this.box.scrollTop / LANE), lanes = Math.ceil((this.canvas.clientHeight - TOP) / LANE);
    return [first, this.rows.slice(first, first + lanes + 1)];
  }

  paint() {
    const width = this.box.clientWidth, height = this.box.clientHeight, ratio = devicePixelRatio || 1, canvas = this.canvas;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const [first, rows] = this.visible(), now = this.data.time;
    canvas.setAttribute("aria-label", `Swim lanes of ${count(this.rows.length)} attempts, ${rows.length} in view from number ${first + 1}`);
    if (!rows.length) {
      pen.fillStyle = colour("dim");
      pen.font = "14px system-ui, sans-serif";
      return pen.fillText(this.data.episodes().length ? "No attempt matches these filters." : "No episode has begun at this event.", 16, 44);
    }
    const end = row => this.shownEnd(row, now);
    const from = this.fit.checked ? Math.min(...rows.map(row => row.granted_at)) : 0;
    const to = Math.max(this.fit.checked ? Math.max(...rows.map(end)) : now, from + 0.01);
    const left = 24 + LETTER * Math.max(...rows.map(row => title(row).length));
    const x = at => left + ((at - from) / (to - from)) * (width - left - RIGHT);
    this.axis(pen, from, to, x, height);
    rows.forEach((row, index) => this.lane(pen, row, TOP + index * LANE, x, now, first + index === this.selected, width));
  }

  shownEnd(row, now) {
    const seen = (position, at) => position && position <= this.data.now ? at : null;
    return seen(row.trained, row.trained_at) ?? (seen(row.batch, row.ended_at) !== null ? now : null) ?? (row.purpose !== "train" || ["abandoned", "rejected", "surplus"].includes(row.outcome) || row.dropped ? seen(row.ended, row.ended_at) : null) ?? now;
  }

  axis(pen, from, to, x, height) {
    pen.font = "12px system-ui, sans-serif";
    const most = Math.max(2, Math.min(8, Math.floor((x(to) - x(from)) / 70))), step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400].find(one => (to - from) / one <= most) ?? (to - from) / most;
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      pen.fillStyle = colour("line");
      pen.fillRect(x(at), TOP - 6, 1, height);
      pen.fillStyle = colour("dim");
      pen.fillText(moment(at), x(at) + 3, 13);
    }
    pen.fillStyle = colour("accent");
    for (const row of this.data.before("versions")) if (!row.worker && row.at >= from && row.at <= to) {
      pen.fillRect(x(row.at), TOP - 4, 1, height);
      pen.fillText(`v${row.weight_version}`, x(row.at) + 2, TOP - 4);
    }
  }

  lane(pen, row, y, x, now, selected, width) {
    const data = this.data, shown = (position, at) => position && position <= data.now && at <= now + 1e-6, middle = y + LANE / 2;
    if (selected) { pen.fillStyle = colour("panel"); pen.fillRect(0, y, width, LANE); }
    pen.font = "12px ui-monospace, monospace";
    pen.fillStyle = colour("text");
    pen.fillText(title(row), 8, middle + 4);
    pen.fillStyle = colour("wait");
    pen.fillRect(x(row.granted_at), middle - 1, Math.max(x(this.shownEnd(row, now)) - x(row.granted_at), 1), 2);
    let begin = row.granted_at;
    for (const [position, at, , spans] of row.calls) {
      if (position > data.now) break;
      const tokens = spans.reduce((sum, [, number]) => sum + number, 0) || 1;
      let done = 0;
      for (const [version, number] of spans) {
        const left = x(begin + ((at - begin) * done) / tokens), right = x(begin + ((at - begin) * (done + number)) / tokens);
        this.block(pen, version, left, y + 4, Math.max(right - left - 0.5, 2), LANE - 8, row);
        done += number;
      }
      begin = at;
    }
    pen.fillStyle = colour("text");
    if (shown(row.scored, row.scored_at)) { pen.beginPath(); pen.arc(x(row.scored_at), middle, 3, 0, 7); pen.fill(); }
    const batch = row.batch && row.batch <= data.now ? data.tables.batches.find(one => one.position === row.batch) : null;
    if (batch) pen.fillRect(x(batch.at) - 1.5, y + 4, 3, LANE - 8);
    if (shown(row.trained, row.trained_at)) pen.fillText("◆", x(row.trained_at) - 4, middle + 4);
    const failed = data.station(row) === "abandoned" || data.station(row) === "dropped";
    if (failed) { pen.fillStyle = colour("bad"); pen.fillText("✕", x(row.ended_at) + 4, middle + 4); }
    pen.fillStyle = colour(failed ? "bad" : "dim");
    const reward = data.reward(row);
    pen.fillText(`${reward === null ? "" : `r ${short(reward)} `}${data.station(row)}`, width - RIGHT + 12, middle + 4);
  }

  block(pen, version, left, top, width, height, row) {
    pen.fillStyle = versionColour(version);
    pen.fillRect(left, top, width, height);
    // a token is too old if its version is below that of the step that trains it by more than the bound
    const at = row.batch && row.batch <= this.data.now ? row.step - 1 : this.data.version();
    if (version >= at - (this.data.bound() ?? Infinity)) return;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.strokeStyle = colour("page");
    pen.lineWidth = 1.5;
    for (let place = left - height; place < left + width; place += 5) { pen.beginPath(); pen.moveTo(place, top + height); pen.lineTo(place + height, top); pen.stroke(); }
    pen.restore();
  }

  at(y) { return y < TOP ? -1 : Math.floor(this.box.scrollTop / LANE) + Math.floor((y - TOP) / LANE); }

  point(index) {
    const row = this.rows[index];
    if (!row) return;
    if (index !== this.selected) { this.selected = index; this.paint(); }
    const versions = [...new Set(row.calls.flatMap(call => call[3].map(([version]) => version)))];
    this.tip.textContent = [`episode ${row.name}, attempt ${row.attempt}`, row.task, this.data.outcome(row), row.reward === null ? "" : `reward ${short(row.reward)}`, `${count(row.calls.length)} calls, ${count(row.tokens)} tokens`, versions.length ? `weight versions ${versions.join(", ")}` : "", `began ${duration(row.granted_at)} after the start`].filter(Boolean).join(" · ");
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (event.key === "Enter" && this.rows[this.selected]) return this.goTo.episode(this.rows[this.selected]);
    if (!step) return;
    event.preventDefault();
    const next = Math.min(Math.max(this.selected + step, 0), this.rows.length - 1), lanes = Math.floor((this.canvas.clientHeight - TOP) / LANE) - 1;
    const first = Math.floor(this.box.scrollTop / LANE);
    if (next < first) this.box.scrollTop = next * LANE;
    if (next > first + lanes) this.box.scrollTop = (next - lanes) * LANE;
    this.point(next);
  }
}
