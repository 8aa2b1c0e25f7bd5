// Draws the open conversation: messages, open candidates, a message on its way, an empty chat; and keeps the scroll.
"use strict";

(function (P) {
  const { h, live } = P;
  const EXAMPLES = [
    "Explain in three sentences how a printing press works.",
    "Write a short poem about a lighthouse in the fog.",
    "Give me five ideas for a rainy Sunday, as a list.",
  ];
  // What a message on its way waits for, by the phase of the connection.
  const WAITS_FOR = { loading: "the model is ready", ready: "this answer is complete" };
  const END_PX = 60;
  // What is left free above the cards when their heads are what is followed.
  const ABOVE_CARDS_PX = 10;
  const PAGE = 40;

  P.Transcript = class {
    // `state` is the chat's own: {open, view, generation, pending}. `actions`: select, edit, regenerate, goOn, stop, pick, retry, takeBack, useSeed, dropOldest, isTooLong.
    constructor(root, state, actions) {
      Object.assign(this, { root, state, actions, views: new Map(), candidates: null, shown: PAGE, sticks: true, refocus: null });
      [this.log, this.scroll, this.jump] = [".pt-log", ".pt-scroll", ".pt-jump"].map((name) => root.querySelector(name));
      this.scroll.addEventListener("scroll", () => this.onScroll(), { passive: true });
      new ResizeObserver(() => this.follow()).observe(this.scroll);
      this.jump.append(P.icon("down"), h("span", {}, "Latest"));
      this.jump.addEventListener("click", () => this.stick());
    }

    // Another conversation: nothing of the last one stays.
    reset() {
      this.views.clear();
      Object.assign(this, { candidates: null, shown: PAGE, sticks: true, refocus: null });
    }

    draw() {
      const nodes = this.wantedNodes();
      const wanted = new Set(nodes);
      for (const node of [...this.log.children]) if (!wanted.has(node)) node.remove();
      nodes.forEach((node, index) => {
        if (this.log.children[index] !== node) this.log.insertBefore(node, this.log.children[index] ?? null);
      });
      for (const [id, view] of this.views) if (!wanted.has(view.node)) this.views.delete(id);
      this.root.classList.toggle("pt-is-empty", !this.state.open && !this.state.pending);
      this.restoreFocus();
      this.follow();
    }

    wantedNodes() {
      const { view, pending } = this.state;
      const nodes = view ? this.pathNodes(view) : [];
      const question = P.unanswered(this.state);
      if (question) nodes.push(P.unansweredNode(question, this.actions.regenerate));
      if (pending) nodes.push(this.pendingNode(pending));
      return nodes.length ? nodes : [this.emptyNode()];
    }

    pathNodes(view) {
      const openIds = new Set(view.candidates.map((message) => message.id));
      const path = view.messages.filter((message) => !openIds.has(message.id));
      const hidden = Math.max(path.length - this.shown, 0);
      const nodes = path.slice(hidden).map((message) => this.messageNode(message));
      if (hidden) nodes.unshift(this.earlierNode(hidden));
      if (view.candidates.length) nodes.push(this.candidatesNode(view));
      else this.candidates = null;
      return nodes;
    }

    messageNode(message) {
      if (!this.views.has(message.id)) this.views.set(message.id, new P.MessageView(message, this.actions));
      const view = this.views.get(message.id);
      const content = JSON.stringify(message);
      // In a long chat nearly all messages are as they were.
      if (view.content !== content) view.update(message);
      view.content = content;
      if (message.status === "generating") this.showPart(view, message);
      return view.node;
    }

    candidatesNode(view) {
      this.candidates ??= new P.CandidatesView(this.actions);
      this.candidates.update(view.candidates, view.conversation.head_id);
      for (const message of view.candidates) {
        if (message.status === "generating") this.showPart(this.candidates.card(message.candidate_index), message);
      }
      return this.candidates.node;
    }

    // What is known live; a text stored earlier stays until there is some.
    showPart(view, message) {
      const generation = live.get(message.generation_id);
      const part = live.part(generation, message.candidate_index);
      if (part.html || part.tail || view.prose.isEmpty) view.setLive(part, generation.progress);
    }

    // The view of a message, as a candidate's card or in the path.
    viewOf(message) {
      const card = this.candidates?.card(message.candidate_index);
      return card?.message.id === message.id ? card : this.views.get(message.id);
    }

    pendingNode(pending) {
      const prose = h("div", { class: "pt-prose" }, h("p", { class: "pt-plain" }, pending.text));
      const node = h("article", { class: "pt-message pt-user pt-pending", "aria-label": "You" }, prose);
      const edit = P.button("edit", "Edit", this.actions.takeBack);
      const event = WAITS_FOR[P.socket.state.phase] ?? "the connection is back";
      if (pending.waits) node.append(h("div", { class: "pt-note", role: "status" }, h("span", {}, `Will be sent when ${event}.`), edit));
      if (!pending.error) return node;
      const buttons = [P.button("again", "Retry", this.actions.retry), edit];
      const hasTurns = this.actions.isTooLong(pending.error);
      if (hasTurns) buttons.push(P.button("up", "Leave out the oldest turns", this.actions.dropOldest));
      node.append(h("div", { class: "pt-note pt-error", role: "alert" }, h("span", {}, P.errorText(pending.error, hasTurns)), ...buttons));
      return node;
    }

    emptyNode() {
      if (this.state.open) return h("div", { class: "pt-empty" }, h("p", {}, this.state.view ? "Nothing is said in this conversation." : "Opening…"));
      const examples = EXAMPLES.map((text) => h("button", { type: "button", class: "pt-example", onclick: () => P.composer.propose(text) }, text));
      return h(
        "div",
        { class: "pt-empty" },
        h("h2", {}, "What shall we write?"),
        P.model.line(),
        h("div", { class: "pt-examples" }, ...examples),
      );
    }

    earlierNode(hidden) {
      const show = () => {
        const fromEnd = this.scroll.scrollHeight - this.scroll.scrollTop;
        this.shown += PAGE;
        this.draw();
        this.scroll.scrollTop = this.scroll.scrollHeight - fromEnd;
      };
      return P.button("up", `Show ${P.plural(hidden, "earlier message")}`, show, { class: "pt-button pt-earlier" });
    }

    // Brings a message of the path into sight; its element, or null when it is not there.
    reveal(id) {
      const path = this.state.view?.messages ?? [];
      const index = path.findIndex((message) => message.id === id);
      if (index < 0) return null;
      this.shown = Math.max(this.shown, path.length - index);
      this.sticks = false;
      this.draw();
      const { node } = this.viewOf(path[index]);
      // A long answer is read from its beginning.
      node.scrollIntoView({ block: node.offsetHeight > window.innerHeight / 2 ? "start" : "center" });
      node.focus({ preventScroll: true });
      return node;
    }

    closeFacts() {
      for (const view of this.views.values()) view.closeFacts();
    }

    // After a change of version the focus goes to the same button of the message that takes the place.
    keepFocus(messageId, from) {
      const focused = document.activeElement;
      this.refocus = from?.node.contains(focused) ? { id: messageId, action: focused.dataset.action } : null;
    }

    restoreFocus() {
      const view = this.refocus && this.views.get(this.refocus.id);
      if (!view) return;
      const { action } = this.refocus;
      this.refocus = null;
      const target = action ? view.foot.querySelector(`[data-action="${action}"]`) : view.node;
      target?.focus({ preventScroll: true });
    }

    // The end is followed only by who is there already; nobody who reads above is moved.
    follow() {
      if (this.sticks) this.scroll.scrollTop = this.endTop();
      this.jump.hidden = this.sticks || this.seesEnd();
    }

    stick() {
      this.sticks = true;
      this.follow();
    }

    // Where the end is seen: the very end, with a message that is on its way, or cards from their heads on.
    endTop() {
      const bottom = this.scroll.scrollHeight - this.scroll.clientHeight;
      if (!this.candidates || this.state.pending) return bottom;
      const heads = this.scroll.scrollTop + this.candidates.node.getBoundingClientRect().top - this.scroll.getBoundingClientRect().top;
      return Math.min(bottom, heads - ABOVE_CARDS_PX);
    }

    seesEnd() {
      return this.scroll.scrollTop > this.endTop() - END_PX;
    }

    // Who has gone on below the heads of cards is not moved either.
    onScroll() {
      this.sticks = Math.abs(this.scroll.scrollTop - this.endTop()) < END_PX;
      this.jump.hidden = this.seesEnd();
    }
  };
})(window.Pageturn);
