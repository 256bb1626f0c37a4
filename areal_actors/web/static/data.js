// The tables of the run as this browser has them. The server sends a notice that there are newer events; the rows that changed
// since the last one are then fetched at once, however many notices came meanwhile.

export const named = (columns, values) => Object.fromEntries(columns.map((name, index) => [name, values[index]]));

export class RunData extends EventTarget {
  constructor() {
    super();
    this.head = { last: 0, at: 0, state: "reading", total: 0, notice: "", error: "", finished: false };
    this.tables = {};
    this.telemetry = { beats: [], engines: {}, now: 0, live: false };
    this.position = null; // null follows the newest event
    this.lost = false;
    this.fetched = 0;
    this.busy = false;
  }

  // The event that the page shows, and its time in seconds since the first one.
  get now() { return this.position ?? this.head.last; }

  get follows() { return this.position === null; }

  get time() {
    if (this.follows) return this.head.at;
    let at = 0;
    for (const [table, place, when] of [["steps", "position", "at"], ["batches", "position", "at"], ["versions", "position", "at"], ["actors", "position", "at"], ["episodes", "ended", "ended_at"], ["episodes", "granted", "granted_at"]]) {
      for (const row of this.tables[table] ?? []) if (row[place] && row[place] <= this.position && row[when] > at) at = row[when];
    }
    return at;
  }

  async open() {
    await this.describe();
    await this.refresh();
    const stream = new EventSource("api/changes");
    stream.onmessage = event => this.notified(JSON.parse(event.data));
    stream.onerror = () => { this.lost = true; this.changed(); };
  }

  async describe() {
    const run = await fetched("api/run");
    Object.assign(this, { name: run.name, began: run.began, recipe: run.recipe, columns: run.columns, whatIfs: run.what_ifs });
    for (const name of Object.keys(run.columns)) this.tables[name] ??= [];
    document.title = `${run.name} · areal`;
  }

  async notified(notice) {
    const telemetry = notice.telemetry !== this.beats;
    if (this.lost) { this.lost = false; this.changed(); }
    this.notice = notice;
    if (this.busy) return;
    this.busy = true;
    try {
      if (notice.last !== this.fetched || notice.state !== this.head.state || notice.notice !== this.head.notice) await this.refresh();
      if (telemetry && this.follows) { this.telemetry = await fetched("api/telemetry"); this.beats = notice.telemetry; this.changed(); }
    } catch { this.lost = true; this.changed(); } finally { this.busy = false; }
    if (this.notice.last !== this.fetched) setTimeout(() => this.notified(this.notice), 250);
  }

  async refresh() {
    const { head, tables } = await fetched(`api/rows?after=${this.fetched}`);
    for (const [name, rows] of Object.entries(tables)) {
      const columns = this.columns[name];
      for (const values of rows) this.tables[name][values[0]] = named(columns, values);
    }
    if (head.last && !Object.keys(this.recipe).length) await this.describe(); // it was asked for before the first event was there
    this.head = head;
    this.fetched = head.last;
    this.changed();
  }

  changed() { this.dispatchEvent(new Event("change")); }

  goTo(position) {
    this.position = position === null || position >= this.head.last ? null : Math.max(position, this.head.first || 1);
    this.changed();
  }

  // ---------------------------------------------------------------- what was there at the event shown

  before(name) { return this.tables[name]?.filter(row => row.position <= this.now) ?? []; }

  steps() { return this.before("steps").filter(row => !row.replaced || row.replaced > this.now); }

  episodes() { return (this.tables.episodes ?? []).filter(row => row.granted <= this.now); }

  // The last station that an attempt has reached.
  station(row) {
    const reached = position => position > 0 && position <= this.now;
    if (reached(row.dropped)) return row.reason === "surplus" ? "surplus" : "dropped";
    if (reached(row.trained)) return "trained";
    if (reached(row.batch)) return "in batch";
    if (reached(row.ended)) return row.outcome;
    if (reached(row.scored)) return "scored";
    return row.calls.some(call => call[0] <= this.now) ? "sampling" : "granted";
  }

  outcome(row) {
    const station = this.station(row);
    return { trained: `trained in step ${row.step}`, "in batch": `in the batch of step ${row.step}`, dropped: `dropped: ${row.reason}`, abandoned: `abandoned: ${row.reason}`, surplus: row.reason ? row.reason.split(":")[0] : "surplus", exported: this.recipe?.actors?.trainer?.count === 0 ? "rewarded" : "waiting for its batch", granted: "not begun" }[station] ?? station;
  }

  reward(row) { return row.ended && row.ended <= this.now ? row.reward : null; }

  tokens(row) { return row.ended && row.ended <= this.now ? row.tokens : row.calls.filter(call => call[0] <= this.now).flatMap(call => call[3]).reduce((sum, [, number]) => sum + number, 0); }

  bound() { return this.before("bounds").at(-1)?.max_staleness ?? null; }

  version() { return this.before("versions").filter(row => row.worker === "").at(-1)?.weight_version ?? -1; }
}

// Addresses are relative: the page of a run of a folder is below that of the folder.
export const fetched = async (path, options) => {
  const answer = await fetch(path, options);
  if (!answer.ok && answer.headers.get("Content-Type")?.startsWith("application/json") !== true) throw new Error(await answer.text());
  return answer.json();
};
