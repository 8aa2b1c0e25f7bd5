// Places in rendered text and in its Markdown source. Pure functions over texts and elements.
"use strict";

(function (P) {
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

  // Where a word begins, so that none is found inside an address.
  function findWord(source, place, word) {
    const literally = [...word].map((character) => `\\u{${character.codePointAt(0).toString(16)}}`).join("");
    const found = source.slice(place).match(new RegExp(`(?:^|\\s)${MARKS}${literally}`, "u"));
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

  // The text of `prose` and how many of its characters come before the end of `range`.
  function shownText(prose, range) {
    let [text, count] = ["", 0];
    for (const node of textNodes(prose)) {
      if (range.comparePoint(node, 0) <= 0) count = text.length + (node === range.endContainer ? range.endOffset : node.length);
      text += node.data;
    }
    return { text, count };
  }

  const codePoints = (text) => [...text].length;

  P.places = { placesInSource, placeInSource, textNodes, shownText, codePoints };
})(window.Pageturn);
