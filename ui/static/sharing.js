// What open candidates save by sharing memory: a line of numbers under them, and what those mean in words.
"use strict";

(function (P) {
  const { h } = P;
  // All answers at the length they came to, as if none had let go before the others: the same numbers whenever one looks.
  // The last to end shares with nobody any more, so the shared blocks are those that the others told of.
  function together(kvs) {
    const shared = Math.max(...kvs.map((kv) => kv.blocks_shared));
    const own = kvs.map((kv) => Math.max(0, kv.blocks_private + kv.blocks_shared - shared));
    return { blocks_shared: shared, blocks_private: own.reduce((sum, each) => sum + each, 0), blocks_saved: shared * (kvs.length - 1), num_candidates: kvs.length };
  }

  // In percent; docs/protocol.md has the formula.
  const share = ({ blocks_shared, blocks_private, blocks_saved }) => Math.round((100 * blocks_saved) / Math.max(blocks_shared + blocks_private + blocks_saved, 1));

  // "shared 62 blocks · private 39 · saved 124 (55%)"
  function numbers(request) {
    const { blocks_shared: shared, blocks_private: own, blocks_saved: saved } = request;
    return `shared ${P.plural(shared, "block")} · private ${P.number(own)} · saved ${P.number(saved)} (${share(request)}%)`;
  }

  function paragraphs(request, isLive) {
    const { blocks_shared: shared, blocks_private: own, blocks_saved: saved, num_candidates: count } = request;
    return [
      `All ${count} answers go on from the same text. What the model remembers of it is kept once for all of them: ${P.plural(shared, "block")}, shared.`,
      `What each writes for itself takes blocks of its own: ${P.number(own)}, private.`,
      `With a copy for each they would need ${P.plural(saved, "block")} more, so sharing saves ${share(request)}% of the memory.`,
      `A block is a piece of memory for a few words. ${isLive ? "These are the numbers now, while the answers are written." : "These are the numbers of the whole answers."}`,
    ];
  }

  P.SharingLine = class {
    constructor() {
      this.words = h("span", {});
      this.button = h("button", { type: "button", class: "pt-savings", hidden: true }, this.words, P.icon("info"));
      this.text = h("div", {});
      const note = h("div", {}, this.text);
      this.node = h("div", { class: "pt-sharing" }, this.button, note);
      P.explain(this.button, note);
    }

    // `request`: what the engine holds for these answers now, an item of the topic `requests`. One that is left shares nothing.
    setLive(request) {
      if (request.num_candidates - request.finish_reasons.length >= 2) this.show(request, true);
    }

    // When all are written.
    settle(messages) {
      const kvs = messages.map((message) => message.kv).filter(Boolean);
      if (kvs.length > 1) this.show(together(kvs), false);
    }

    show(request, isLive) {
      this.button.hidden = false;
      P.setText(this.words, numbers(request));
      this.text.replaceChildren(...paragraphs(request, isLive).map((text) => h("p", {}, text)));
    }
  };
})(window.Pageturn);
