// Where a person writes: always visible, never loses a word. Enter sends, Shift+Enter breaks the line, Esc stops.
"use strict";

(function (P) {
  const { h } = P;
  const DRAFT_LIMIT = 100;
  let area, sendButton, stopButton, threeButton;
  let draftId = null;
  // Set by chat.js: submit(text, n), stop(), refusal() -> reason or null, isBusy().
  let actions = null;

  function drafts() {
    return P.store.get("drafts", {});
  }

  // `id` is a conversation's, or null for a new one.
  function saveDraft(id, text) {
    const key = id ?? "new";
    const all = drafts();
    delete all[key];
    if (text) all[key] = text;
    const kept = Object.entries(all).slice(-DRAFT_LIMIT);
    P.store.set("drafts", Object.fromEntries(kept));
  }

  function fit() {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.35)}px`;
  }

  function refresh() {
    if (!area) return;
    const busy = actions.isBusy();
    const reason = actions.refusal();
    sendButton.hidden = busy;
    stopButton.hidden = !busy;
    sendButton.setAttribute("aria-disabled", String(!area.value.trim() || Boolean(reason)));
    if (P.saysObstacle()) P.sayObstacle(reason);
  }

  function setText(text) {
    area.value = text;
    fit();
    refresh();
  }

  function submit() {
    const text = area.value;
    const reason = actions.refusal();
    if (!text.trim()) return;
    if (reason) {
      P.sayObstacle(reason);
      return;
    }
    setText("");
    actions.submit(text, threeButton.getAttribute("aria-pressed") === "true" ? 3 : 1);
  }

  // A draft belongs to its conversation.
  function open(id) {
    draftId = id;
    if (area) setText(drafts()[id ?? "new"] ?? "");
  }

  // A text that could not be sent comes back, before whatever was typed meanwhile.
  function giveBack(text, id) {
    const typed = id === draftId ? area.value : (drafts()[id ?? "new"] ?? "");
    const both = typed.trim() && typed !== text ? `${text}\n${typed}` : text;
    saveDraft(id, both);
    if (id === draftId) setText(both);
  }

  function mount(node, given) {
    actions = given;
    area = h("textarea", { class: "pt-input", rows: 1, placeholder: "Write a message", "aria-label": "Message", enterkeyhint: "send" });
    sendButton = P.iconButton("up", "Send", submit, { class: "pt-send" });
    stopButton = P.button("stop", "Stop", () => actions.stop(), { class: "pt-button pt-stop", title: "Stop (Esc)" });
    const three = P.store.get("three", false);
    threeButton = P.button("three", "3 answers", toggleThree, { class: "pt-button pt-quiet pt-three", "aria-pressed": String(three), title: "Ask for three answers side by side" });
    node.append(area, h("div", { class: "pt-composer-row" }, threeButton, h("span", { class: "pt-keys" }, "Enter sends · Shift+Enter for a new line"), stopButton, sendButton));
    area.addEventListener("input", () => {
      saveDraft(draftId, area.value);
      fit();
      refresh();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
    node.addEventListener("click", (event) => event.target === node && area.focus());
    open(draftId);
  }

  const isEmptyBox = (node) => node === area && !area.value;

  function toggleThree() {
    const pressed = threeButton.getAttribute("aria-pressed") !== "true";
    threeButton.setAttribute("aria-pressed", String(pressed));
    P.store.set("three", pressed);
  }

  P.composer = { mount, open, refresh, giveBack, setText, saveDraft, isEmptyBox, focus: () => area?.focus() };
})(window.Pageturn);
