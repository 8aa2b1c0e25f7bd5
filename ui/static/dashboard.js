// The Dashboard tab: tiles, the block map, lines over time, what other policies would hold, live requests.
// It listens only while it can be seen.
"use strict";

(function (P) {
  const { h, socket } = P;
  const WINDOW_MS = 120000;
  const TOPICS = ["stats", "requests", "blocks"];
  const TILES = [
    ["in_use", "Blocks in use"],
    ["utilisation", "Utilisation"],
    ["cached", "Cached"],
    ["free", "Free"],
    ["running", "Running"],
    ["waiting", "Waiting"],
    ["speed", "Tokens/s"],
    ["hits", "Prefix hit rate"],
    ["preemptions", "Preemptions"],
    ["forks", "Forks"],
    ["copies", "Block copies"],
    ["tokens", "Generated"],
  ];
  const POLICIES = [
    ["paged", "Paged (in use now)"],
    ["exact", "Contiguous, exact length"],
    ["pow2", "Contiguous, next power of two"],
    ["max_len", "Contiguous, full context"],
  ];
  const COLUMNS = ["Request", "State", "Answers", "Prompt", "Cached", "Generated", "Private", "Shared", "Age"];
  const tiles = new Map();
  let root, map, utilisation, speed, counts, table, bars, engine;
  let listening = false;
  let onScreen = false;
  let last = null;

  function tile([key, label]) {
    const value = h("dd", {}, "–");
    const note = h("dd", { class: "pt-tile-note" });
    tiles.set(key, { value, note });
    return h("div", { class: "pt-tile", "data-tile": key }, h("dt", {}, label), value, note);
  }

  function show(key, value, note) {
    P.setText(tiles.get(key).value, value);
    P.setText(tiles.get(key).note, note);
  }

  function tokensPerSecond(stats) {
    const tokens = stats.counters.generated_tokens;
    const rate = last && stats.time > last.time ? Math.max(0, (tokens - last.tokens) / (stats.time - last.time)) : 0;
    last = { time: stats.time, tokens };
    return rate;
  }

  function showTiles({ blocks, requests, counters, tokens }, rate) {
    const inUse = blocks.private + blocks.shared;
    show("in_use", P.number(inUse), `of ${P.number(blocks.total)}`);
    show("utilisation", P.percent(inUse, blocks.total), `${P.number(tokens.stored)} tokens`);
    show("cached", P.number(blocks.cached), "blocks to reclaim");
    show("free", P.number(blocks.free), "blocks");
    show("running", P.number(requests.running), "sequences");
    show("waiting", P.number(requests.waiting), requests.waiting ? `${requests.waiting_capacity} for memory · ${requests.waiting_budget} for their turn` : "nobody waits");
    show("speed", rate.toFixed(1), "at this moment");
    show("hits", P.percent(counters.prefix_hits, counters.prefix_queries), `${P.number(counters.prefix_hits)} of ${P.number(counters.prefix_queries)}`);
    show("preemptions", P.number(counters.preemptions), "since start");
    show("forks", P.number(counters.forks), "since start");
    show("copies", P.number(counters.cow_copies), "on write");
    show("tokens", P.number(counters.generated_tokens), "tokens");
  }

  function showCounts(blocks) {
    P.setText(counts, `${P.number(blocks.private)} private · ${P.number(blocks.shared)} shared · ${P.number(blocks.cached)} cached · ${P.number(blocks.free)} free, of ${P.number(blocks.total)} blocks of ${blocks.block_size} tokens`);
  }

  function showBars(bytes) {
    const most = Math.max(...POLICIES.map(([key]) => bytes[key]), 1);
    for (const [key] of POLICIES) {
      const bar = bars.querySelector(`[data-policy="${key}"]`);
      bar.querySelector("i").style.width = `${(100 * bytes[key]) / most}%`;
      P.setText(bar.querySelector("b"), P.bytes(bytes[key]));
    }
  }

  function showEngine(model) {
    const facts = [model.model_name, model.quantization, `${model.attention_backend} kernels on ${model.device}`, `KV ${model.kv_cache_dtype}`, `${P.bytes(model.bytes_per_block)} a block`];
    P.setText(engine, facts.join(" · "));
  }

  function onStats({ stats }) {
    if (!listening) return;
    const rate = tokensPerSecond(stats);
    showTiles(stats, rate);
    showCounts(stats.blocks);
    showBars(stats.counterfactual_bytes);
    showEngine(stats.model);
    const { private: own, shared, total } = stats.blocks;
    utilisation.push(stats.time * 1000, total ? (100 * (own + shared)) / total : 0);
    speed.push(stats.time * 1000, rate);
  }

  function requestRow(item) {
    const state = item.waiting_reason ? `${item.state} (${item.waiting_reason})` : item.state;
    const progress = item.computed_tokens < item.prompt_tokens ? `${P.number(item.computed_tokens)} of ${P.number(item.prompt_tokens)}` : P.number(item.prompt_tokens);
    const cells = [item.request_id, state, item.num_candidates, progress, item.cached_tokens, item.generated_tokens, item.blocks_private, item.blocks_shared, P.seconds(item.age_s)];
    return h("tr", {}, ...cells.map((cell) => h("td", {}, String(cell))));
  }

  function onRequests({ items }) {
    if (!listening) return;
    const rows = items.length ? items.map(requestRow) : [h("tr", {}, h("td", { colspan: COLUMNS.length, class: "pt-none" }, "No live requests"))];
    table.replaceChildren(...rows);
  }

  function listen() {
    const wanted = onScreen && document.visibilityState === "visible";
    if (wanted === listening) return;
    listening = wanted;
    last = null;
    for (const topic of TOPICS) (wanted ? socket.subscribe : socket.unsubscribe)(topic);
  }

  function policyBar([key, label]) {
    return h("li", { "data-policy": key }, h("span", {}, label), h("span", { class: "pt-bar" }, h("i")), h("b", {}, "–"));
  }

  function mount(element) {
    root = element.querySelector(".pt-dashboard");
    root.querySelector(".pt-tiles").append(...TILES.map(tile));
    [counts, table, bars, engine] = [".pt-counts", "tbody", ".pt-bars", ".pt-engine"].map((name) => root.querySelector(name));
    bars.append(...POLICIES.map(policyBar));
    root.querySelector("thead tr").append(...COLUMNS.map((name) => h("th", { scope: "col" }, name)));
    map = new P.BlockMap(root.querySelector(".pt-map"), root.querySelector(".pt-hover"));
    utilisation = new P.LineChart(root.querySelector("[data-chart=utilisation]"), { least: 5, windowMs: WINDOW_MS, format: (value) => `${value.toFixed(1)} %` });
    speed = new P.LineChart(root.querySelector("[data-chart=speed]"), { least: 10, windowMs: WINDOW_MS, format: (value) => `${value.toFixed(1)} tokens/s` });
    new IntersectionObserver(([entry]) => {
      onScreen = entry.isIntersecting;
      listen();
    }).observe(root);
    new MutationObserver(() => map.draw()).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  socket.on("stats", onStats);
  socket.on("requests", onRequests);
  socket.on("blocks", (cells) => map && listening && map.set(cells));
  // Numbers that have stopped arriving do not look alive.
  socket.on("state", ({ phase }) => root?.classList.toggle("pt-old", phase === "lost"));
  document.addEventListener("visibilitychange", listen);

  P.dashboard = { mount };
})(window.Pageturn);
