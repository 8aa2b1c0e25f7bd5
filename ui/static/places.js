// Places in rendered text and in its Markdown source. Pure functions over texts and elements.
"use strict";

(function (P) {
  const BLOCKS = "p, li, h3, h4, h5, h6, td, th, pre, .pt-math-block";
  const LONGEST_RUN = 16;
  const CLOSING_MARKS = /^[*_~`]*/;
  // What may stand between a space and a word that begins with a letter or digit.
  const MARKS = "[^\\s\\p{L}\\p{N}]{0,4}";

  // Rendered text is its Markdown source without the markup, so it is followed through the source character by character.
  // What the source has besides is skipped: to the next place where the run of characters at hand goes on.
  // Returns for each count from 0 where in `source` that many characters of `shown` end.
  function placesInSource(source, shown) {
    const places = [0];
    for (let i = 0; i < shown.length; i++) {
      let place = places[i];
      if (!/\s/.test(shown[i])) {
        if (source[place] !== shown[i]) place = findRun(source, place, shown, i);
        place += 1;
      }
      places.push(place);
    }
    return places;
  }

  // Where in `source` the first `count` characters of `shown` end, with the marks that end there too.
  function placeInSource(source, shown, count) {
    const place = placesInSource(source, shown).at(count);
    return place + source.slice(place).match(CLOSING_MARKS)[0].length;
  }

  function findRun(source, place, shown, i) {
    while (/\s/.test(source[place] ?? "")) place += 1;
    if (source[place] === shown[i]) return place;
    const run = shown.slice(i, i + LONGEST_RUN).match(/^\S+/)[0];
    const word = i > 0 && /\s/.test(shown[i - 1]) ? findWord(source, place, run) : -1;
    if (word >= 0) return word;
    for (let length = run.length; length > 0; length = length >> 1) {
      const found = source.indexOf(run.slice(0, length), place);
      if (found >= 0) return found;
    }
    return place - 1;
  }

  // A text as a pattern of mode "u" that it alone matches.
  const literally = (text) => [...text].map((character) => `\\u{${character.codePointAt(0).toString(16)}}`).join("");

  // Where a word begins, so that none is found inside an address.
  function findWord(source, place, word) {
    const found = source.slice(place).match(new RegExp(`(?:^|\\s)${MARKS}${literally(word)}`, "u"));
    return found ? place + found.index + found[0].length - word.length : -1;
  }

  // The text nodes of `prose` in order; buttons and labels are no text.
  function textNodes(prose) {
    const nodes = [];
    const walker = document.createTreeWalker(prose, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (!node.parentElement.closest(".pt-code-head")) nodes.push(node);
    }
    return nodes;
  }

  // A range over what is shown from one count of characters to another.
  function rangeOf(nodes, begin, end) {
    const range = document.createRange();
    let start = 0;
    for (const node of nodes) {
      if (begin >= start && begin < start + node.length) range.setStart(node, begin - start);
      if (end > start && end <= start + node.length) range.setEnd(node, end - start);
      start += node.length;
    }
    return range;
  }

  // The text of `prose` and how many of its characters come before the end of `range`.
  function shownText(prose, range) {
    let [text, count] = ["", 0];
    for (const node of textNodes(prose)) {
      if (range.comparePoint(node, 0) <= 0) count = text.length + (node === range.endContainer ? range.endOffset : node.length);
      text += node.data;
    }
    return { text, count };
  }

  // {begin, end} of each sentence of what is shown, in counts of its characters; no sentence goes beyond its paragraph, and
  // in code each line is one.
  function sentences(nodes) {
    const found = [];
    let at = 0;
    for (const block of blocksOf(nodes)) {
      const text = block.nodes.map((node) => node.data).join("");
      for (const { begin, end } of piecesOf(text, block.element?.matches("pre"))) found.push({ begin: at + begin, end: at + end });
      at += text.length;
    }
    return found;
  }

  function blocksOf(nodes) {
    const blocks = [];
    for (const node of nodes) {
      const element = node.parentElement.closest(BLOCKS);
      if (!blocks.length || blocks.at(-1).element !== element) blocks.push({ element, nodes: [] });
      blocks.at(-1).nodes.push(node);
    }
    return blocks;
  }

  // Without the spaces around them, and without pieces that are nothing else.
  function piecesOf(text, isCode) {
    const pieces = isCode ? (text.match(/[^\n]*\n|[^\n]+/g) ?? []) : [...new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(text)].map(({ segment }) => segment);
    const found = [];
    let at = 0;
    for (const piece of pieces) {
      const words = piece.trim();
      if (words) found.push({ begin: at + piece.indexOf(words), end: at + piece.indexOf(words) + words.length });
      at += piece.length;
    }
    return found;
  }

  // An element may be longer than the window, so the place itself goes to the middle.
  function bringIntoSight(range) {
    const element = range.startContainer.parentElement;
    element.scrollIntoView({ block: "center" });
    const box = element.closest(".pt-card-body, .pt-scroll");
    const [seen, place] = [box.getBoundingClientRect(), range.getBoundingClientRect()];
    box.scrollTop += place.top - seen.top - seen.height / 2;
  }

  const codePoints = (text) => [...text].length;

  P.places = { literally, placesInSource, placeInSource, textNodes, rangeOf, sentences, bringIntoSight, shownText, codePoints };
})(window.Pageturn);
