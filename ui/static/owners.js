// Whose blocks are: from the numbers in the frames of the block map to conversations and colours.
"use strict";

(function (P) {
  // Okabe and Ito's colours, which people with any kind of colour vision can tell apart; then the same, darker and lighter.
  const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
  const SHADES = [1, 0.72, 1.25];
  const UNKNOWN = "request";

  function shade(hex, factor) {
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return parts.map((part) => Math.round(factor <= 1 ? part * factor : part + (255 - part) * (factor - 1)));
  }

  const COLOURS = SHADES.flatMap((factor) => HUES.map((hex) => shade(hex, factor)));

  // A conversation keeps its colour; what is not known yet gets one that its conversation takes over.
  P.Owners = class {
    constructor() {
      Object.assign(this, { byNumber: new Map(), colourOf: new Map(), next: 0 });
    }

    // From the topic `requests`; a number is reused only after 16,383 requests.
    learn(items) {
      this.byNumber = new Map();
      for (const item of items) {
        this.byNumber.set(item.owner_number, item);
        const key = item.conversation_id;
        const temporary = `${UNKNOWN} ${item.owner_number}`;
        if (key && !this.colourOf.has(key) && this.colourOf.has(temporary)) this.colourOf.set(key, this.colourOf.get(temporary));
      }
      if (this.colourOf.size > 4096) this.colourOf.clear();
    }

    find(number) {
      return this.byNumber.get(number);
    }

    // [red, green, blue] of a number.
    colour(number) {
      const key = this.byNumber.get(number)?.conversation_id ?? `${UNKNOWN} ${number}`;
      if (!this.colourOf.has(key)) this.colourOf.set(key, this.next++ % COLOURS.length);
      return COLOURS[this.colourOf.get(key)];
    }
  };

  // A conversation's question about a token of an answer, of which nothing is kept.
  P.isComparison = (item) => item.conversation_id !== null && item.generation_id === null;

  const programName = ({ kind, request_id }) => (kind === "embedding" ? `Embedding ${request_id}` : `Program's request ${request_id}`);

  // What a person calls a request.
  P.requestName = (item) => (P.isComparison(item) ? `Compare: ${item.title}` : item.title || programName(item));
})(window.Pageturn);
