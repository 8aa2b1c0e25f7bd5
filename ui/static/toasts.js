// Notices: one at a time, where nothing lies that is read or pressed. A plain one is soon gone; one with an action, or of a
// failure, stays until it is used, dismissed or long enough there, also under a newer notice: it comes back into sight after
// that one. None goes while it is pointed at or has the focus. What can be undone or chosen can be so for longest. What was done
// to the open conversation is told of no longer than that is on show.
"use strict";

(function (P) {
  const { h } = P;
  const MS = 3000;
  const LONG_MS = 8000;
  const UNDO_MS = 30000;
  // The notice on show: {node, text, until, timer, undo, isHere}.
  let shown = null;
  // What has buttons and is under the one on show, the newest last.
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
    if (shown?.node.querySelector("button")) covered.push(shown);
    if (shown) takeDown();
    const node = h("div", { class: "pt-toast" }, h("span", { role: "status" }, text), h("div", {}, ...buttons));
    putUp({ node, text, until: performance.now() + ms, timer: 0, undo, isHere: false });
  }

  function leavePlace() {
    const kept = covered.filter((notice) => !notice.isHere);
    covered.splice(0, covered.length, ...kept);
    if (shown?.isHere) end();
  }

  const dismissal = () => P.iconButton("close", "Dismiss", end);
  const actionButton = (label, onclick, props) => h("button", { type: "button", class: "pt-toast-action", onclick: () => (end(), onclick()), ...props }, label);

  P.toast = function (text, action, onclick) {
    if (!action) {
      show(text, MS, null);
      return;
    }
    const isUndo = action === "Undo";
    const keys = isUndo ? { title: "Undo (Ctrl+Z)", "aria-keyshortcuts": "Control+Z" } : {};
    show(text, isUndo ? UNDO_MS : LONG_MS, isUndo ? onclick : null, actionButton(action, onclick, keys), dismissal());
  };

  // The same of what was done to the open conversation: it goes when another one or another tab is opened.
  P.toastHere = function (text, action, onclick) {
    P.toast(text, action, onclick);
    shown.isHere = true;
  };

  // `actions`: [label, onclick] of each.
  P.choiceToast = (text, actions) => show(text, UNDO_MS, null, ...actions.map(([label, onclick]) => actionButton(label, onclick)), dismissal());

  P.failureToast = (text) => show(text, LONG_MS, null, dismissal());

  // Takes back the newest of what can be undone, and tells of what was not in sight; whether there was something.
  function undo() {
    if (shown?.undo) {
      const { undo } = shown;
      end();
      undo();
      return true;
    }
    const at = covered.findLastIndex((notice) => notice.undo && notice.until > performance.now());
    if (at < 0) return false;
    const [notice] = covered.splice(at, 1);
    notice.undo();
    P.toast(`Taken back: ${notice.text}`);
    return true;
  }

  document.addEventListener("pageturn:open", leavePlace);
  // Before the tab is the selected one.
  document.addEventListener("click", (event) => event.target.closest?.('[role="tab"][aria-selected="false"]') && leavePlace(), true);

  // In a field the key undoes what was typed there.
  document.addEventListener("keydown", (event) => {
    const isUndo = (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z";
    if (isUndo && !event.target.closest?.("input, textarea, [contenteditable]")?.value && undo()) event.preventDefault();
  });
})(window.Pageturn);
