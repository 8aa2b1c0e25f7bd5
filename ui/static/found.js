// What a search has found in a message: its words are marked, and the first of them is brought into sight.
"use strict";

(function (P) {
  const { literally, textNodes, rangeOf, bringIntoSight } = P.places;
  const NAME = "pt-found";
  const MOST = 200;

  // Where the words stand in the text that is shown, inside of others too; a search has no other idea of a word.
  function places(prose, words) {
    const nodes = textNodes(prose);
    const pattern = [...words].sort((a, b) => b.length - a.length).map(literally).join("|");
    const hits = nodes.map((node) => node.data).join("").matchAll(new RegExp(pattern, "giu"));
    return [...hits].slice(0, MOST).map((hit) => rangeOf(nodes, hit.index, hit.index + hit[0].length));
  }

  function mark(node, words) {
    clear();
    const prose = node.querySelector(".pt-prose");
    const ranges = words.length ? places(prose, words) : [];
    if (!ranges.length) return;
    CSS.highlights?.set(NAME, new Highlight(...ranges));
    bringIntoSight(ranges[0]);
  }

  const clear = () => CSS.highlights?.delete(NAME);

  document.addEventListener("pageturn:open", clear);
  P.found = { mark, clear };
})(window.Pageturn);
