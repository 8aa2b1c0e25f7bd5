// The Dashboard tab: what arrives from the server goes to the parts that show it. It listens only while it can be seen.
"use strict";

(function (P) {
  const { h, socket } = P;
  const TOPICS = ["stats", "requests", "blocks"];
  const LOOK_UP_MS = 120;
  const RESTING = "Point at a block to see whose it is; a click opens the conversation.";
  const NO_MAP = "The map is drawn when the model is ready.";
  const owners = new P.Owners();
  let root, map, tiles, memory, table, timeline, history, counts, engine, machine, caption, zoom, view;
  let listening = false;
  let onScreen = false;
  let lookUp = 0;

  function onStats({ stats }) {
    if (!listening) return;
    const { blocks, model } = stats;
    tiles.update(stats);
    memory.update(stats);
    P.machineFacts(machine, stats);
    P.setText(counts, `${P.number(blocks.private)} private · ${P.number(blocks.shared)} shared · ${P.number(blocks.cached)} cached · ${P.number(blocks.free)} free, of ${P.number(blocks.total)} blocks of ${blocks.block_size} tokens`);
    P.setText(engine, `${model.model_name} · ${model.quantization} · ${P.kernels(model)}`);
  }

  function onRequests(frame) {
    if (!listening) return;
    owners.learn(frame.items);
    memory.noteSavings(frame.blocks_saved);
    table.update(frame);
    map.draw();
  }

  function onBlocks(cells) {
    if (!map || !listening) return;
    const isFirst = zoom.hidden;
    map.set(cells);
    zoom.hidden = false;
    if (isFirst) onHover(null);
  }

  // Numbers that have stopped arriving do not look alive; the next ones take the place of the words.
  function onState(state) {
    if (!root) return;
    root.classList.toggle("pt-old", ["lost", "loading"].includes(state.phase));
    const words = P.banner.wordsFor(state);
    if (words) P.setText(engine, words);
  }

  // At once what is known here, a moment later what the server says of the block.
  function onHover(index, cell) {
    clearTimeout(lookUp);
    if (index === null) {
      P.setText(caption, map.cells.length ? RESTING : NO_MAP);
      return;
    }
    const owner = owners.find(cell & 0x3fff);
    P.setText(caption, `Block ${index}: ${P.blockState(cell)}${owner ? `, ${P.requestName(owner)}` : ""}`);
    lookUp = setTimeout(() => describe(index), LOOK_UP_MS);
  }

  async function describe(index) {
    const block = await P.api("GET", `blocks/${index}`).catch(() => null);
    if (!block || map.selected !== index) return;
    const holders = block.holders.map((holder) => `${P.requestName(holder)} (answer ${P.answerLetter(holder.index)}, block ${holder.position + 1} of it)`);
    const parts = [`Block ${index}: ${block.state}`, P.plural(block.ref_count, "reference"), P.plural(block.num_tokens, "token"), holders.slice(0, 4).join(", "), holders.length > 4 ? `and ${holders.length - 4} more` : ""];
    P.setText(caption, parts.filter(Boolean).join(" · "));
  }

  function onPick(index, cell) {
    const owner = owners.find(cell & 0x3fff);
    if (owner?.conversation_id) openConversation(owner.conversation_id);
    else P.say(owner ? "A program asked for this one; there is no conversation to open." : "Nobody holds this block.");
  }

  function openConversation(id) {
    P.chat.open(id);
    [...document.querySelectorAll('[role="tab"]')].find((tab) => tab.textContent.trim() === "Chat")?.click();
  }

  function zoomButtons(group) {
    const button = (label, text, act) => h("button", { type: "button", class: "pt-button", "aria-label": label, title: label, onclick: act }, text);
    view = { text: h("span", { class: "pt-soft" }), back: button("Earlier blocks", "‹", () => map.shift(-1)), on: button("Later blocks", "›", () => map.shift(1)), out: button("Zoom out", "−", () => map.zoom(0.5)) };
    group.append(view.text, view.back, view.on, view.out, button("Zoom in", "+", () => map.zoom(2)));
  }

  function onView({ zoomed, perCell, span }) {
    const range = zoomed ? `blocks ${P.number(span[0])} to ${P.number(span[1] - 1)}` : "";
    P.setText(view.text, [range, perCell > 1 ? `${perCell} blocks a cell` : ""].filter(Boolean).join(" · "));
    for (const button of [view.back, view.on, view.out]) button.hidden = !zoomed;
  }

  function listen() {
    const wanted = onScreen && document.visibilityState === "visible";
    if (wanted === listening) return;
    listening = wanted;
    tiles.forget();
    history.listen(wanted);
    timeline.open(wanted ? table.opened : null);
    for (const topic of TOPICS) (wanted ? socket.subscribe : socket.unsubscribe)(topic);
  }

  function mount(element) {
    root = element.querySelector(".pt-dashboard");
    const part = (name) => root.querySelector(name);
    [counts, engine, machine, caption] = [".pt-counts", ".pt-engine", "[data-facts=machine]", ".pt-hover"].map(part);
    tiles = new P.Tiles(part(".pt-tiles"));
    memory = new P.MemoryPanel(part("[aria-label=Memory]"));
    timeline = new P.Timeline(P.h("div", { class: "pt-timeline" }));
    table = new P.RequestsTable(part("[aria-label=Requests]"), timeline, owners);
    history = new P.HistoryPanel(part(".pt-history"));
    zoom = part(".pt-zoom");
    zoom.hidden = true;
    zoomButtons(zoom);
    map = new P.BlockMap(part(".pt-map"), owners, { onHover, onPick, onView });
    onHover(null);
    onState(socket.state);
    new IntersectionObserver(([entry]) => {
      onScreen = entry.isIntersecting;
      listen();
    }).observe(root);
    new MutationObserver(() => {
      map.restyle();
      history.draw();
    }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  socket.on("stats", onStats);
  socket.on("requests", onRequests);
  socket.on("blocks", onBlocks);
  socket.on("state", onState);
  document.addEventListener("visibilitychange", () => root && listen());

  P.dashboard = { mount, openConversation, map: () => map };
})(window.Pageturn);
