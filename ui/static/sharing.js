// What open candidates save by sharing memory: a line of numbers under them, and what those mean in words.
"use strict";

(function (P) {
  const { h } = P;
  const REMEMBERED = 50;
  // By generation: the moment when its answers held most together, an item of the topic `requests`.
  const fullest = new Map();

  function remember(request) {
    const { generation_id: id } = request;
    const held = (each) => each.blocks_shared + each.blocks_private;
    if (fullest.has(id) && held(fullest.get(id)) >= held(request)) return;
    fullest.set(id, request);
    if (fullest.size > REMEMBERED) fullest.delete(fullest.keys().next().value);
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
      `A block is a piece of memory for a few words. ${isLive ? "These are the numbers now, while the answers are written." : "These are the numbers from when the answers held most."}`,
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
      if (request.num_candidates - request.finish_reasons.length < 2) return;
      remember(request);
      this.show(request, true);
    }

    // Once nothing can be shared any more: what it was when they held most.
    settle(generationId) {
      const request = fullest.get(generationId);
      if (request) this.show(request, false);
    }

    show(request, isLive) {
      this.button.hidden = false;
      P.setText(this.words, numbers(request));
      this.text.replaceChildren(...paragraphs(request, isLive).map((text) => h("p", {}, text)));
    }
  };
})(window.Pageturn);
