// The list of keys, on `?`.
"use strict";

(function (P) {
  const { h } = P;
  const PICK = "pick";
  const KEYS = [
    ["Enter", "send"],
    ["Shift Enter", "a new line"],
    ["Esc", "stop the answer; close what is open"],
    [PICK, "pick one of several answers by its number"],
    ["← →", "on a message: its other versions; on an answer to choose from: the next one"],
    ["↑ ↓", "where an answer is continued from a place: the sentence before, the next one"],
    ["Ctrl K", "search conversations"],
    ["/", "write a message"],
    ["N", "a new chat"],
    ["C", "compare several answers"],
    ["Ctrl Z", "undo what was just deleted"],
    ["Tab", "from one control to the next"],
    ["?", "this list"],
  ];

  // Of the answers that are open, or of as many as one can ask for.
  function pickKeys() {
    const numbers = (P.chat.view()?.candidates ?? []).map(P.answerKey).filter((number) => number <= P.LAST_KEY);
    return numbers.length ? `${Math.min(...numbers)} – ${Math.max(...numbers)}` : `1 – ${P.several.MOST}`;
  }

  function open() {
    const rows = KEYS.flatMap(([keys, what]) => [h("dt", {}, ...(keys === PICK ? pickKeys() : keys).split(" ").map((key) => (/[–]/.test(key) ? key : h("kbd", {}, key)))), h("dd", {}, what)]);
    P.openDialog("Keyboard shortcuts", h("dl", { class: "pt-shortcuts" }, ...rows));
  }

  P.shortcuts = { open };
})(window.Pageturn);
