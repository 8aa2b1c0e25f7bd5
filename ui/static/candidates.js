// Open candidates: cards side by side, or swiped on a phone. One is picked with its button or the key of its number; the one
// that was last touched, focused or swiped to is the one that a new message continues.
"use strict";

(function (P) {
  const { h } = P;

  P.CandidatesView = class {
    // `actions`: pick(message), stop(index), goOn(message, place), regenerate(message, {n}).
    constructor(actions) {
      this.actions = { ...actions, focus: (message) => this.setFocus(message.id) };
      this.cards = new Map();
      this.running = false;
      this.focusId = null;
      this.row = h("div", { class: "pt-cards" });
      this.dots = h("div", { class: "pt-dots", "aria-hidden": "true" });
      this.sharing = new P.SharingLine();
      this.hint = h("p", { class: "pt-hint" });
      this.compare = new P.Compare(() => this.inOrder());
      const foot = h("div", { class: "pt-candidates-foot" }, h("div", {}, this.sharing.node, this.hint), this.compare.button);
      this.node = h("section", { class: "pt-candidates", "aria-label": "Answers to choose from" }, this.row, this.dots, foot);
      this.row.addEventListener("scroll", () => this.onSwipe(), { passive: true });
      this.row.addEventListener("keydown", (event) => this.onKey(event));
    }

    update(messages, headId) {
      for (const message of messages) {
        if (!this.cards.has(message.id)) this.cards.set(message.id, new P.Card(message, this.actions));
        const card = this.cards.get(message.id);
        card.update(message, messages);
        if (card.node.parentNode !== this.row) this.row.append(card.node);
      }
      const ids = new Set(messages.map((message) => message.id));
      for (const [id, card] of this.cards) {
        if (ids.has(id)) continue;
        card.node.remove();
        this.cards.delete(id);
      }
      const running = messages.some((message) => message.status === "generating");
      this.dots.replaceChildren(...messages.map(() => h("i")));
      this.markDot();
      this.watchEnd(running);
      if (!running) this.sharing.settle(messages);
      this.compare.update(!running && messages.filter((message) => message.content).length > 1);
      this.setFocus(ids.has(this.focusId) ? this.focusId : (ids.has(headId) ? headId : messages[0].id));
    }

    setFocus(id) {
      this.focusId = id;
      for (const [each, card] of this.cards) card.setCurrent(each === id);
      const keys = h("span", { class: "pt-by-key" }, this.keysLine());
      this.hint.replaceChildren(keys, `A new message continues ${P.answerName(this.cards.get(id).message)}.`);
    }

    keysLine() {
      const keys = this.inOrder().map((card) => P.answerKey(card.message)).filter((number) => number <= P.LAST_KEY);
      return keys.length ? `Press ${keys.length > 1 ? `${keys[0]}–${keys.at(-1)}` : keys[0]} to pick. ` : "";
    }

    inOrder() {
      return [...this.cards.values()].sort((a, b) => a.message.candidate_index - b.message.candidate_index);
    }

    // Once all are written they are there to be compared, each from its first line.
    watchEnd(running) {
      if (this.running && !running) for (const card of this.cards.values()) card.toBeginning();
      this.running = running;
    }

    card(index) {
      return [...this.cards.values()].find((card) => card.message.candidate_index === index);
    }

    // Whether there was one to pick; where the key does nothing else, that there is none is told.
    pick(number, types) {
      const card = this.inOrder().find((each) => P.answerKey(each.message) === number);
      if (card) this.actions.pick(card.message);
      else if (!types) P.say(`There is no answer ${number} here. ${this.keysLine()}`.trim());
      return Boolean(card);
    }

    onKey(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const cards = this.inOrder();
      const at = cards.findIndex((card) => card.body === event.target);
      if (!by || at < 0 || !cards[at + by]) return;
      event.preventDefault();
      cards[at + by].body.focus();
    }

    shownIndex() {
      const step = this.row.scrollWidth / Math.max(this.cards.size, 1);
      return step ? Math.min(Math.round(this.row.scrollLeft / step), this.cards.size - 1) : 0;
    }

    // Where cards do not stand side by side, the one in sight is the one that is meant.
    onSwipe() {
      this.markDot();
      const shown = this.inOrder()[this.shownIndex()];
      if (this.row.scrollWidth > this.row.clientWidth && shown) this.setFocus(shown.message.id);
    }

    markDot() {
      const shown = this.shownIndex();
      [...this.dots.children].forEach((dot, index) => dot.classList.toggle("pt-on", index === shown));
    }
  };
})(window.Pageturn);
