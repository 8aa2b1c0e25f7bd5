// Open candidates: cards side by side, or swiped on a phone. One is picked with its button or the keys 1, 2, 3.
"use strict";

(function (P) {
  const { h } = P;

  class Card {
    constructor(message, actions) {
      this.actions = actions;
      this.prose = new P.Prose();
      this.wait = h("div", { class: "pt-wait" });
      this.stats = h("span", { class: "pt-meta" });
      this.stop = P.iconButton("stop", `Stop answer ${message.candidate_index + 1}`, () => actions.stop(this.message.candidate_index));
      this.blocks = h("p", { class: "pt-blocks" });
      this.note = h("p", { class: "pt-note" });
      this.use = P.button("check", "Use this", () => actions.pick(this.message), { class: "pt-button pt-primary pt-use" });
      const head = h("header", {}, h("h3", {}, `Answer ${message.candidate_index + 1}`), this.stats, this.stop);
      const body = h("div", { class: "pt-card-body", tabindex: 0, role: "group", "aria-label": `Text of answer ${message.candidate_index + 1}` }, this.prose.node, this.wait);
      const foot = h("footer", {}, this.note, this.blocks, this.use);
      this.node = h("article", { class: "pt-card", "data-id": message.id }, head, body, foot);
      this.body = body;
      body.addEventListener("scroll", () => (this.follows = this.atEnd()));
      this.follows = true;
      this.use.append(h("kbd", {}, String(message.candidate_index + 1)));
      this.update(message, 1);
    }

    atEnd() {
      return this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 40;
    }

    update(message, count) {
      this.message = message;
      const generating = message.status === "generating";
      this.node.dataset.status = message.status;
      this.node.setAttribute("aria-label", `Answer ${message.candidate_index + 1} of ${count}`);
      this.stop.hidden = !generating;
      P.setText(this.stats, generating ? "" : P.usageLine({ ...message, timings: { ...message.timings, ttft_ms: 0 } }));
      P.setText(this.blocks, [P.finishLabel(message.finish_reason), P.blocksLine(message.kv)].filter(Boolean).join(" · "));
      const note = P.endNote(message);
      P.setText(this.note, note && ["error", "interrupted"].includes(message.status) ? note.text : "");
      if (!generating || this.prose.isEmpty) this.prose.set(message.html, "");
      if (!generating) this.wait.replaceChildren();
    }

    // For who has followed the end; nobody who reads elsewhere is moved.
    toBeginning() {
      if (this.follows) this.body.scrollTop = 0;
    }

    setLive(part, progress) {
      this.prose.set(part.html, part.tail);
      this.wait.replaceChildren(...(part.waits || this.prose.isEmpty ? [P.progressNode(progress)] : []));
      if (this.follows) this.body.scrollTop = this.body.scrollHeight;
    }
  }

  P.CandidatesView = class {
    // `actions`: pick(message), stop(index).
    constructor(actions) {
      this.actions = actions;
      this.cards = new Map();
      this.running = false;
      this.row = h("div", { class: "pt-cards" });
      this.dots = h("div", { class: "pt-dots", "aria-hidden": "true" });
      this.memory = h("p", { class: "pt-hint" });
      this.hint = h("p", { class: "pt-hint" });
      this.node = h("section", { class: "pt-candidates", "aria-label": "Answers to choose from" }, this.row, this.dots, this.memory, this.hint);
      this.row.addEventListener("scroll", () => this.markDot(), { passive: true });
    }

    update(messages, headId) {
      for (const message of messages) {
        if (!this.cards.has(message.id)) this.cards.set(message.id, new Card(message, this.actions));
        const card = this.cards.get(message.id);
        card.update(message, messages.length);
        card.node.classList.toggle("pt-current", message.id === headId);
        if (card.node.parentNode !== this.row) this.row.append(card.node);
      }
      const ids = new Set(messages.map((message) => message.id));
      for (const [id, card] of this.cards) {
        if (ids.has(id)) continue;
        card.node.remove();
        this.cards.delete(id);
      }
      this.dots.replaceChildren(...messages.map(() => h("i")));
      this.markDot();
      this.watchEnd(messages.some((message) => message.status === "generating"));
      const head = messages.find((message) => message.id === headId);
      const keys = h("span", { class: "pt-by-key" }, `Press 1–${messages.length} to pick. `);
      this.hint.replaceChildren(...(head ? [keys, `A new message continues answer ${head.candidate_index + 1}.`] : []));
    }

    // Once all are written they are there to be compared, each from its first line.
    watchEnd(running) {
      if (!running) P.setText(this.memory, "");
      if (this.running && !running) for (const card of this.cards.values()) card.toBeginning();
      this.running = running;
    }

    // What the engine holds for these answers now; `request` is an item of the topic `requests`.
    setLive(request) {
      P.setText(this.memory, `${P.plural(request.generated_tokens, "token")} so far · shared ${P.plural(request.blocks_shared, "block")} · private ${request.blocks_private}`);
    }

    card(index) {
      return [...this.cards.values()].find((card) => card.message.candidate_index === index);
    }

    // Whether there was one to pick.
    pick(index) {
      const card = this.card(index);
      if (card) this.actions.pick(card.message);
      return Boolean(card);
    }

    markDot() {
      const step = this.row.scrollWidth / Math.max(this.cards.size, 1);
      const shown = step ? Math.min(Math.round(this.row.scrollLeft / step), this.cards.size - 1) : 0;
      [...this.dots.children].forEach((dot, index) => dot.classList.toggle("pt-on", index === shown));
    }
  };
})(window.Pageturn);
