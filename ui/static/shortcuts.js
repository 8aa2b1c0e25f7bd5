// The list of keys, on `?`.
"use strict";

(function (P) {
  const { h } = P;
  const KEYS = [
    ["Enter", "send"],
    ["Shift Enter", "a new line"],
    ["Esc", "stop the answer; close what is open"],
    ["1 – 9", "pick one of several answers"],
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

  function open() {
    const rows = KEYS.flatMap(([keys, what]) => [h("dt", {}, ...keys.split(" ").map((key) => (/[–]/.test(key) ? key : h("kbd", {}, key)))), h("dd", {}, what)]);
    P.openDialog("Keyboard shortcuts", h("dl", { class: "pt-shortcuts" }, ...rows));
  }

  P.shortcuts = { open };
})(window.Pageturn);
