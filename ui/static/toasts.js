// Notices: one at a time, where nothing lies that is read or pressed. A plain one is soon gone; one with an action, or of a
// failure, stays until it is used, dismissed or long enough there. None goes while it is pointed at or has the focus.
"use strict";

(function (P) {
  const { h } = P;
  const MS = 3000;
  const LONG_MS = 8000;
  // The notice on show: {node, act, timer}.
  let shown = null;

  function end() {
    if (!shown) return;
    clearTimeout(shown.timer);
    shown.node.remove();
    shown = null;
  }

  function wait(ms) {
    clearTimeout(shown.timer);
    shown.timer = setTimeout(() => (shown.node.matches(":hover, :focus-within") ? wait(MS) : end()), ms);
  }

  function show(text, act, ms, ...buttons) {
    end();
    const node = h("div", { class: "pt-toast" }, h("span", { role: "status" }, text), ...buttons);
    shown = { node, act, timer: 0 };
    document.body.append(node);
    wait(ms);
  }

  const dismissal = () => P.iconButton("close", "Dismiss", end);

  P.toast = function (text, action, onclick) {
    if (!action) {
      show(text, null, MS);
      return;
    }
    const act = () => (end(), onclick());
    const keys = action === "Undo" ? { title: "Undo (Ctrl+Z)", "aria-keyshortcuts": "Control+Z" } : {};
    show(text, action === "Undo" ? act : null, LONG_MS, h("button", { type: "button", class: "pt-toast-action", onclick: act, ...keys }, action), dismissal());
  };

  P.failureToast = (text) => show(text, null, LONG_MS, dismissal());

  // In a field the key undoes what was typed there.
  document.addEventListener("keydown", (event) => {
    const isUndo = (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z";
    if (!isUndo || !shown?.act || event.target.closest?.("input, textarea, [contenteditable]")?.value) return;
    event.preventDefault();
    shown.act();
  });
})(window.Pageturn);
