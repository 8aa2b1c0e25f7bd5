// The tiles: the engine's numbers now, each with what it means for who points at it or tabs to it.
"use strict";

(function (P) {
  const { h } = P;
  const TILES = [
    ["in_use", "Blocks in use", "Blocks that at least one running sequence refers to, private and shared. Cached blocks are reclaimable: nobody refers to them, but their content can be taken up again. Free ones hold nothing."],
    ["utilisation", "KV utilisation", "Blocks in use of all blocks. Beneath: token slots of the whole pool that hold a token; the difference is what the last blocks of sequences still lack."],
    ["running", "Running", "Sequences (candidates) in the batch."],
    ["waiting", "Waiting", "Sequences in the queue. Memory: no blocks or no sequence slot are free for them. Turn: the step's token budget is spent. Sibling: another candidate computes what they will share."],
    ["queue", "Queue time", "From a request's arrival to its first step: median of the last minute; beneath, what 95 % of them stay within."],
    ["hits", "Prefix hit rate", "Prompt tokens found in the prefix cache, of those looked up, in the last minute; beneath since the start."],
    ["speed", "Tokens out/s", "Sampled tokens a second, mean of the last 10 seconds; beneath their number since the start."],
    ["prompt_speed", "Tokens in/s", "Prompt tokens admitted a second, mean of the last 10 seconds; beneath their number since the start."],
    ["ttft", "First token", "From a request's arrival to a candidate's first token: median of the last minute; beneath, what 95 % of them stay within."],
    ["itl", "Between tokens", "From one token of a candidate to its next: median of the last minute; beneath, what 95 % of them stay within."],
    ["preemptions", "Preemptions", "Sequences pushed out because the pool was short, since the start. They come back and compute again."],
    ["forks", "Forks", "Candidates that took over another's blocks without a copy, since the start; beneath the blocks copied at the first write into a shared one."],
  ];

  const RATE_S = 10;

  P.Tiles = class {
    constructor(list) {
      this.nodes = new Map();
      // Frames of the last RATE_S seconds and the one before: {time, counters}.
      this.recent = [];
      list.append(...TILES.map((tile) => this.tile(tile)));
    }

    tile([key, label, meaning]) {
      const value = h("dd", {}, "–");
      const note = h("dd", { class: "pt-tile-note" });
      this.nodes.set(key, { value, note });
      const tip = h("dd", { class: "pt-tip", id: `pt-tip-${key}` }, meaning);
      return h("div", { class: "pt-tile", "data-tile": key, tabindex: "0", "aria-describedby": `pt-tip-${key}` }, h("dt", {}, label), value, note, tip);
    }

    show(key, value, note) {
      P.setText(this.nodes.get(key).value, value);
      P.setText(this.nodes.get(key).note, together(note));
    }

    note({ time, counters }) {
      const { recent } = this;
      if (!recent.length || time > recent.at(-1).time) recent.push({ time, counters });
      while (recent.length > 1 && recent[1].time <= time - RATE_S) recent.shift();
    }

    // How much a counter grew a second, since the oldest frame that is remembered; 0 at the first.
    rate(name) {
      const [first, last] = [this.recent[0], this.recent.at(-1)];
      return last.time > first.time ? Math.max(0, (last.counters[name] - first.counters[name]) / (last.time - first.time)) : 0;
    }

    forget() {
      this.recent = [];
    }

    update(stats) {
      const { blocks, requests, counters, tokens, last_minute: minute } = stats;
      const inUse = blocks.private + blocks.shared;
      this.note(stats);
      this.show("in_use", P.number(inUse), `${P.number(blocks.cached)} cached · ${P.number(blocks.free)} free`);
      this.show("utilisation", P.percent(inUse, blocks.total), `${P.percent(tokens.stored, tokens.capacity)} of token slots`);
      this.show("running", P.number(requests.running), "sequences");
      this.show("waiting", P.number(requests.waiting), waitingNote(requests));
      this.showLatency("queue", minute);
      this.show("hits", minute?.hit_rate == null ? "–" : P.percent(minute.hit_rate, 1), `${P.percent(counters.prefix_hits, counters.prefix_queries)} since start`);
      this.show("speed", this.rate("generated_tokens").toFixed(1), `${P.number(counters.generated_tokens)} since start`);
      this.show("prompt_speed", this.rate("prompt_tokens").toFixed(1), `${P.number(counters.prompt_tokens)} since start`);
      this.showLatency("ttft", minute);
      this.showLatency("itl", minute);
      this.show("preemptions", P.number(counters.preemptions), "since start");
      this.show("forks", P.number(counters.forks), `${P.plural(counters.cow_copies, "block")} copied`);
    }

    showLatency(key, minute) {
      const [median, high] = [minute?.[`${key}_p50_ms`], minute?.[`${key}_p95_ms`]];
      this.show(key, median == null ? "–" : P.milliseconds(median), high == null ? "none in the last minute" : `95 % within ${P.milliseconds(high)}`);
    }
  };

  // A number and what it counts stay on one line.
  const together = (text) => text.replace(/(\d) /g, "$1\u00a0");

  function waitingNote(requests) {
    const reasons = [["memory", requests.waiting_capacity], ["turn", requests.waiting_budget], ["sibling", requests.waiting_deferred]];
    const given = reasons.filter(([, count]) => count).map(([name, count]) => `${P.number(count)} ${name}`);
    return given.join(" · ") || "nobody waits";
  }
})(window.Pageturn);
