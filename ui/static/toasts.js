// Notices: one at a time, where nothing lies that is read or pressed. A plain one is soon gone; one with an action, or of a
// failure, stays until it is used, dismissed or long enough there. None goes while it is pointed at or has the focus. What can
// be undone can be so for longest, also under a newer notice: it comes back into sight after that one.
"use strict";

(function (P) {
  const { h } = P;
  const MS = 3000;
  const LONG_MS = 8000;
  const UNDO_MS = 30000;
  // The notice on show: {node, until, timer, undo}.
  let shown = null;
  // What can still be undone and is under the one on show, the newest last.
  const covered = [];

  function putUp(notice) {
    shown = notice;
    document.body.append(notice.node);
    wait(notice.until - performance.now());
  }

  function takeDown() {
    clearTimeout(shown.timer);
    shown.node.remove();
    shown = null;
  }

  function wait(ms) {
    clearTimeout(shown.timer);
    shown.timer = setTimeout(() => (shown.node.matches(":hover, :focus-within") ? wait(MS) : end()), ms);
  }

  function end() {
    takeDown();
    while (covered.length && !shown) {
      const older = covered.pop();
      if (older.until > performance.now()) putUp(older);
    }
  }

  function show(text, ms, undo, ...buttons) {
    if (shown?.undo) covered.push(shown);
    if (shown) takeDown();
    const node = h("div", { class: "pt-toast" }, h("span", { role: "status" }, text), ...buttons);
    putUp({ node, until: performance.now() + ms, timer: 0, undo });
  }

  const dismissal = () => P.iconButton("close", "Dismiss", end);

  P.toast = function (text, action, onclick) {
    if (!action) {
      show(text, MS, null);
      return;
    }
    const isUndo = action === "Undo";
    const act = () => (end(), onclick());
    const keys = isUndo ? { title: "Undo (Ctrl+Z)", "aria-keyshortcuts": "Control+Z" } : {};
    const button = h("button", { type: "button", class: "pt-toast-action", onclick: act, ...keys }, action);
    show(text, isUndo ? UNDO_MS : LONG_MS, isUndo ? onclick : null, button, dismissal());
  };

  P.failureToast = (text) => show(text, LONG_MS, null, dismissal());

  // Takes back the newest of what can be undone; whether there was something.
  function undo() {
    const newest = shown?.undo ? shown : covered.pop();
    if (!newest || (newest !== shown && newest.until < performance.now())) return false;
    if (newest === shown) end();
    newest.undo();
    return true;
  }

  // In a field the key undoes what was typed there.
  document.addEventListener("keydown", (event) => {
    const isUndo = (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z";
    if (isUndo && !event.target.closest?.("input, textarea, [contenteditable]")?.value && undo()) event.preventDefault();
  });
})(window.Pageturn);
