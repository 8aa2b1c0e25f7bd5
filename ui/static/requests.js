// The table of requests, live and recent, with Stop; a row opens, below itself, what happened to its request.
"use strict";

(function (P) {
  const { h } = P;
  const COLUMNS = ["Conversation", "State", "Answers", "Prompt", "Generated", "Cached", "Own / shared", "Tokens/s", "Time"];
  const TIME = "Since the request came; of one that has ended, from its coming to its end";
  const MOST_RECENT = 8;
  const COMPARISON = "Compare asked the model for one token, to show what it thought at a mark";
  // What a request waits for.
  const WAITS_FOR = { capacity: "for memory", budget: "for its turn", deferred: "for a sibling" };

  P.RequestsTable = class {
    // `timeline` is shown below the row that is open; a live row has its colour on the block map from `owners`.
    constructor(panel, timeline, owners) {
      Object.assign(this, { panel, timeline, owners, rows: new Map(), opened: null, showsAll: false });
      this.body = panel.querySelector("tbody");
      this.count = panel.querySelector(".pt-request-count");
      panel.querySelector("thead tr").append(...COLUMNS.map((name) => h("th", { scope: "col", title: name === "Time" ? TIME : null }, name)));
      this.none = h("tr", {}, h("td", { colspan: COLUMNS.length, class: "pt-none" }, "No live requests"));
      this.life = h("tr", { class: "pt-life", id: "pt-life" }, h("td", { colspan: COLUMNS.length }, timeline.element));
      this.more = h("button", { type: "button", class: "pt-button pt-all-recent", hidden: true, onclick: () => this.toggleAll() }, "");
      panel.querySelector(".pt-table").after(this.more);
    }

    update({ items, recent }) {
      this.frame = { items, recent };
      const shown = this.showsAll ? recent : recent.slice(0, MOST_RECENT);
      const wanted = [...items, ...shown];
      if (this.opened !== null && !wanted.some((item) => item.request_id === this.opened)) this.open(null);
      const rows = wanted.flatMap((item) => (item.request_id === this.opened ? [this.row(item), this.life] : [this.row(item)]));
      if (!items.length) rows.unshift(this.none);
      for (const id of this.rows.keys()) if (!wanted.some((item) => item.request_id === id)) this.rows.delete(id);
      rows.forEach((row, at) => this.body.children[at] !== row && this.body.insertBefore(row, this.body.children[at] ?? null));
      while (this.body.children.length > rows.length) this.body.lastChild.remove();
      P.setText(this.count, `${P.number(items.length)} live`);
      this.more.hidden = recent.length <= MOST_RECENT;
      P.setText(this.more, this.showsAll ? "Show fewer" : `Show all ${recent.length} recent`);
    }

    toggleAll() {
      this.showsAll = !this.showsAll;
      this.update(this.frame);
    }

    row(item) {
      if (!this.rows.has(item.request_id)) this.rows.set(item.request_id, this.makeRow(item));
      const row = this.rows.get(item.request_id);
      const { tr, cells, stop, name, swatch } = row;
      this.setName(row, item);
      const isLive = item.state !== "finished";
      const [answers, generated] = item.kind === "embedding" ? ["–", "–"] : [item.num_candidates, P.number(item.generated_tokens)];
      const values = [stateOf(item), answers, progressOf(item), generated, P.number(item.cached_tokens), blocksOf(item, isLive), item.tokens_per_second ? item.tokens_per_second.toFixed(1) : "–", P.seconds(item.age_s)];
      values.forEach((value, at) => P.setText(cells[at], String(value)));
      tr.classList.toggle("pt-ended", !isLive);
      tr.classList.toggle("pt-opened", this.opened === item.request_id);
      swatch.hidden = stop.hidden = !isLive;
      if (isLive) swatch.style.background = `rgb(${this.owners.colour(item.owner_number)})`;
      name.setAttribute("aria-expanded", String(this.opened === item.request_id));
      return tr;
    }

    makeRow(item) {
      const { request_id: id } = item;
      const name = h("button", { type: "button", class: "pt-row-name", "aria-controls": "pt-life" });
      const stop = h("button", { type: "button", class: "pt-button pt-row-stop", onclick: () => this.stop(item) }, "Stop");
      const swatch = h("i", { class: "pt-swatch" });
      const cells = COLUMNS.slice(1).map((label) => h("td", { "data-label": label }));
      const go = item.conversation_id ? P.iconButton("right", "Open", () => P.dashboard.openConversation(item.conversation_id)) : null;
      const onclick = (event) => (event.target.closest("button") ?? name) === name && !hasSelection() && this.toggle(id);
      return { tr: h("tr", { "data-request": id, onclick }, h("td", {}, h("span", { class: "pt-row-head" }, swatch, name, go, stop)), ...cells), cells, stop, name, go, swatch };
    }

    // A conversation may be renamed while its requests are listed.
    setName({ tr, name, go, stop }, item) {
      const title = P.requestName(item);
      if (name.textContent === title) return;
      name.textContent = title;
      name.title = P.isComparison(item) ? COMPARISON : `What happened to ${title}`;
      stop.setAttribute("aria-label", `Stop ${title}`);
      for (const key of go ? ["title", "aria-label"] : []) go.setAttribute(key, `Open ${title}`);
      if (tr.dataset.request === String(this.opened)) this.timeline.rename(title);
    }

    toggle(id) {
      this.open(this.opened === id ? null : id);
      this.update(this.frame);
    }

    open(id) {
      this.opened = id;
      this.timeline.open(id);
    }

    async stop(item) {
      try {
        await P.api("POST", `requests/${item.request_id}/stop`);
        P.say(`Stopped ${P.requestName(item)}`);
      } catch (error) {
        P.failureToast(`Not stopped: ${error.message}`);
      }
    }
  };

  // Who marks a number to copy it does not mean to open the row.
  const hasSelection = () => getSelection().type === "Range";

  function stateOf(item) {
    if (item.state === "finished" && P.isComparison(item)) return "one token asked for";
    if (item.state === "finished") return [...new Set(item.finish_reasons.map(P.endWord))].join(", ") || "finished";
    if (!item.waiting_reason) return item.state;
    const waits = WAITS_FOR[item.waiting_reason] ?? item.waiting_reason;
    return item.state === "running" ? `running (some wait ${waits})` : `${item.state} ${waits}`;
  }

  function progressOf(item) {
    const isComputing = item.state !== "finished" && item.computed_tokens < item.prompt_tokens;
    return isComputing ? `${P.number(item.computed_tokens)} of ${P.number(item.prompt_tokens)}` : P.number(item.prompt_tokens);
  }

  const blocksOf = (item, isLive) => (isLive ? `${P.number(item.blocks_private)} / ${P.number(item.blocks_shared)}` : "–");
})(window.Pageturn);
