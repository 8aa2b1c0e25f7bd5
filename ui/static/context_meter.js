// How much of the model's context the conversation fills; a click leads to what happens when it is full.
"use strict";

(function (P) {
  const { h } = P;
  const HIGH = 0.75;
  const FULL = 0.95;

  // Tokens of the path as the last answer left them; null before the first one.
  function usedTokens(view) {
    const last = view?.messages.findLast((message) => message.usage);
    return last ? last.usage.total_tokens : null;
  }

  P.ContextMeter = class {
    constructor() {
      this.bar = h("i", {});
      this.words = h("span", {});
      this.node = h("button", { type: "button", class: "pt-context-meter", hidden: true, onclick: () => P.conversationSettings.open() }, h("span", { class: "pt-context-bar", "aria-hidden": "true" }, this.bar), this.words);
    }

    update(view) {
      const used = usedTokens(view);
      const length = P.socket.state.max_model_len;
      this.node.hidden = used === null || !length;
      if (this.node.hidden) return;
      const share = Math.min(used / length, 1);
      const then = view.conversation.when_full === "stop" ? "no more turns fit" : "the oldest turns are left out of the prompt";
      this.bar.style.width = `${100 * share}%`;
      this.node.dataset.level = share >= FULL ? "full" : share >= HIGH ? "high" : "fine";
      P.setText(this.words, P.percent(used, length));
      const label = `Context: ${P.number(used)} of ${P.number(length)} tokens. When it is full, ${then}.`;
      this.node.setAttribute("aria-label", label);
      this.node.title = label;
    }
  };
})(window.Pageturn);
