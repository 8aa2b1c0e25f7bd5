// The engine's past in lines: 15 minutes, a day, 30 days, or what one selects by dragging over a chart. CSV of the same.
"use strict";

(function (P) {
  const { h } = P;
  const WINDOWS = [["15m", "15 minutes", 5000], ["1d", "Day", 60000], ["30d", "Month", 600000]];
  const LEAST_SELECTION_S = 5;
  const UNITS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const percent = (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`;
  const milliseconds = (value) => P.milliseconds(value);
  const hundredfold = (name) => (row) => (row[name] === null ? null : 100 * row[name]);
  const plain = (name) => (row) => row[name];
  const CHARTS = [
    { title: "KV utilisation", lines: [["blocks", hundredfold("utilisation")], ["token slots", hundredfold("token_utilisation")]], least: 2, most: 100, format: percent },
    { title: "Tokens per second", lines: [["out", plain("output_tokens_per_second")], ["in", plain("prompt_tokens_per_second")]], least: 10, format: (value) => (value < 100 ? value.toFixed(1) : P.number(Math.round(value))) },
    { title: "Time to first token", lines: [["median", plain("ttft_p50_ms")], ["95 % within", plain("ttft_p95_ms")]], least: 10, format: milliseconds },
    { title: "Time between tokens", lines: [["median", plain("itl_p50_ms")], ["95 % within", plain("itl_p95_ms")]], least: 5, format: milliseconds },
    { title: "Prefix hit rate", lines: [["hits", hundredfold("hit_rate")]], least: 100, most: 100, format: percent },
    { title: "Preemptions", lines: [["preemptions", plain("preemptions")]], least: 10, format: (value) => P.number(value) },
  ];

  // "One point an hour", "One point every 2 minutes".
  function everyStep(seconds) {
    const [size, name] = UNITS.find(([size]) => seconds % size === 0);
    if (seconds > size) return `One point every ${seconds / size} ${name}s`;
    return `One point ${name === "hour" ? "an" : "a"} ${name}`;
  }

  P.HistoryPanel = class {
    constructor(panel) {
      Object.assign(this, { window: WINDOWS[0], range: null, timer: 0, wanted: false, time: null, from: null });
      this.note = panel.querySelector(".pt-history-note");
      this.buttons = WINDOWS.map((entry) => h("button", { type: "button", class: "pt-button", onclick: () => this.choose(entry) }, entry[1]));
      this.back = h("button", { type: "button", class: "pt-button", hidden: true, onclick: () => this.choose(this.window) }, "Whole range");
      this.link = h("a", { class: "pt-button pt-csv", download: "pageturn-history.csv" }, "CSV");
      panel.querySelector(".pt-windows").append(this.back, ...this.buttons, this.link);
      this.charts = CHARTS.map((options) => new P.LineChart(panel.querySelector(".pt-charts").appendChild(h("section", { class: "pt-chart" })), { ...options, crosshair: this }));
      this.mark();
    }

    // Fetch again and again while it can be seen.
    listen(wanted) {
      this.wanted = wanted;
      clearTimeout(this.timer);
      if (wanted) this.refresh();
    }

    choose(entry) {
      Object.assign(this, { window: entry, range: null });
      this.mark();
      this.listen(this.wanted);
    }

    mark() {
      this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(WINDOWS[index] === this.window && !this.range)));
      this.back.hidden = !this.range;
      this.link.href = `api/history?${this.query()}&format=csv`;
    }

    query() {
      return this.range ? `start=${this.range[0]}&end=${this.range[1]}` : `window=${this.window[0]}`;
    }

    // Of a window that is on show already only what has come since its last point is asked for.
    async refresh() {
      const query = this.query();
      const known = this.history?.query === query ? this.history.rows.at(-1) : null;
      const told = await P.api("GET", `history?${query}${known ? `&since=${known.time}` : ""}`).catch((error) => ({ error }));
      if (query !== this.query()) return;
      if (told.error) P.setText(this.note, `The history could not be read: ${told.error.message}`);
      else this.show(told, query, known ? this.history.rows : []);
      if (this.wanted && !this.range) this.timer = setTimeout(() => this.refresh(), this.window[2]);
    }

    show(told, query, known) {
      const kept = known.filter(({ time }) => time >= told.start && time < told.since);
      const rows = [...kept, ...told.rows.map((values) => Object.fromEntries(told.fields.map((name, index) => [name, values[index]])))];
      this.history = { ...told, rows, query };
      const gaps = rows.filter((row, index) => row.after_gap && index).length;
      P.setText(this.note, rows.length ? `${everyStep(told.step)}${gaps ? ` · ${P.plural(gaps, "gap")} in which no app ran` : ""} · drag over a chart to look closer` : "Nothing was recorded in this time.");
      for (const chart of this.charts) chart.set(this.history);
    }

    draw() {
      for (const chart of this.charts) chart.draw();
    }

    // The crosshair that all charts share.
    move(time) {
      if (this.from !== null && time === null) return;
      this.time = time;
      this.draw();
    }

    start(time) {
      this.from = this.time = time;
    }

    cancel() {
      this.from = null;
      this.move(null);
    }

    end(time) {
      if (this.from === null) return;
      const span = [this.from, time].sort((a, b) => a - b).map(Math.round);
      this.from = null;
      if (time !== null && span[1] - span[0] >= LEAST_SELECTION_S) {
        this.range = span;
        this.mark();
        this.refresh();
      }
      this.move(null);
    }
  };
})(window.Pageturn);
